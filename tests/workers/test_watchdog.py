"""A worker that does not move says so with its heartbeat: what, since when, and doing what."""

import asyncio
import threading
import time
from collections.abc import Callable

from engine_parts import make_scheduler, make_sequence
from worker_pair import Node, NodeKind, PagedRunner, Pair, worker_pair

from segue.cluster.worker_status import WorkerCondition, WorkerStatus
from segue.kvtransfer.loopback_transport import LoopbackFabric, LoopbackTransport
from segue.kvtransfer.receiver import Receiver
from segue.workers.engine import Engine
from segue.workers.plan_recorder import PlanRecorder
from segue.workers.scheduler.plan import Scheduled, StepPlan
from segue.workers.step_execution import StepExecution
from segue.workers.watchdog import Diagnosis, Watchdog, last_step

STALLED_AFTER = 0.4
PROMPT = list(range(12))


class Fatal(BaseException):
    """Nothing in the loops catches this; a thread of theirs dies of it."""


class FragileEngine(Engine):
    """Dies when an odd thing is asked of it."""

    def run_once(self) -> None:
        if any(action is fatal for action, _ in self._inbox._commands):
            raise ZeroDivisionError("a defect in the loop")
        super().run_once()


def fatal() -> None:
    raise AssertionError("it must not be run")


WATCHED = NodeKind(stalled_after_s=STALLED_AFTER)
FRAGILE = NodeKind(engine=FragileEngine)


async def until(pair: Pair, node: Node, condition: WorkerCondition) -> WorkerStatus:
    await pair.until(lambda: node.service.status_now().condition is condition)
    return node.service.status_now()


async def test_an_engine_that_does_not_move_names_its_step() -> None:
    async with worker_pair(decode_kind=WATCHED) as pair:
        await pair.ask(PROMPT, 4)
        await asyncio.sleep(1.5 * STALLED_AFTER)  # to be idle is not to be stuck
        assert pair.decode.service.status_now().condition is WorkerCondition.READY
        pair.decode.runner.gate.clear()
        asking = asyncio.create_task(pair.ask(PROMPT, 4))
        status = await until(pair, pair.decode, WorkerCondition.STALLED)
        assert status.stuck_seconds >= STALLED_AFTER
        assert status.cause.startswith("the engine thread has not moved for ")
        assert "its step began" in status.cause and "1 tokens of answers" in status.cause
        assert "called by segue.workers.step_execution." in status.cause
        pair.decode.runner.gate.set()
        assert len((await asking).tokens) == 4
        status = await until(pair, pair.decode, WorkerCondition.READY)
        assert status.cause == "" and status.stuck_seconds == 0


async def test_an_engine_thread_that_died_is_named_with_its_error() -> None:
    async with worker_pair(prefill_kind=FRAGILE) as pair:
        await pair.ask(PROMPT, 2)
        pair.prefill.engine.post(fatal)
        status = await until(pair, pair.prefill, WorkerCondition.FAILED)
        assert status.cause == (
            "the engine thread has ended: ZeroDivisionError: a defect in the loop"
        )


async def test_a_transfer_thread_that_does_not_move_is_told() -> None:
    async with worker_pair(decode_kind=WATCHED) as pair:
        go_on = threading.Event()

        def stand_still() -> None:
            go_on.wait(10)

        pair.decode.receiver._post(stand_still)
        status = await until(pair, pair.decode, WorkerCondition.STALLED)
        assert "the transfer thread has not moved" in status.cause
        assert "0 reads in flight; it is in threading." in status.cause
        go_on.set()
        await until(pair, pair.decode, WorkerCondition.READY)
        assert len((await pair.ask(PROMPT, 4)).tokens) == 4


async def test_a_transfer_thread_that_died_is_named_with_its_error() -> None:
    def die() -> None:
        raise Fatal("no memory")

    async with worker_pair(decode_kind=WATCHED) as pair:
        pair.decode.receiver._post(die)
        status = await until(pair, pair.decode, WorkerCondition.FAILED)
        assert status.cause == "the transfer thread has ended: Fatal: no memory"


def test_a_long_rest_is_no_stall_when_work_comes_again() -> None:
    """Neither the rest's length nor the moment of waking may be taken for a step."""
    now = [0.0]
    runner = PagedRunner(32)
    engine = Engine(
        make_scheduler(), StepExecution(runner, None), lambda outcome: None, lambda: now[0]
    )
    transport = LoopbackTransport(LoopbackFabric(), "alone")
    receiver = Receiver(transport, runner.layout, runner.checksums)
    watchdog = Watchdog(engine, receiver, 60.0, lambda: now[0])
    runner.gate.clear()
    engine.start()
    engine.call(lambda: None).result(5)
    now[0] = 1000.0
    soon(lambda: watchdog.diagnose() == Diagnosis())  # it rests
    engine.post(lambda: engine.add(make_sequence("a", range(8), 2)))
    soon(lambda: engine.recorder.unfinished is not None)
    assert watchdog.diagnose() == Diagnosis()
    now[0] += 60.0
    diagnosis = watchdog.diagnose()
    assert diagnosis.condition is WorkerCondition.STALLED and diagnosis.stuck_seconds == 60.0
    runner.gate.set()
    soon(lambda: watchdog.diagnose() == Diagnosis())
    engine.stop()


def soon(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def test_a_step_is_told_in_few_words() -> None:
    recorder = PlanRecorder(4)
    assert last_step(recorder, 9.0) == "no step is under way"
    contexts = [make_sequence(f"r{i}", range(9), 4) for i in range(5)]
    plan = StepPlan(tuple(Scheduled(s, 0, 8) for s in contexts), num_generation_tokens=3)
    recorder.begin(plan, 5.0)
    names = ", ".join(str(sequence.attempt) for sequence in contexts[:3])
    assert last_step(recorder, 9.0) == (
        f"its step began 4 s ago: 40 prompt tokens of {names} and 2 more and 3 tokens of answers"
    )
    recorder.record(plan, 5.0, 9.5, 7)
    assert last_step(recorder, 9.6) == "no step is under way"


def test_a_queue_that_nothing_will_move_is_named() -> None:
    """It has no work in the sense of steps, so it was taken for rest."""
    now = [0.0]
    runner = PagedRunner(32)
    scheduler = make_scheduler(8)
    engine = Engine(scheduler, StepExecution(runner, None), lambda outcome: None, lambda: now[0])
    transport = LoopbackTransport(LoopbackFabric(), "me")
    receiver = Receiver(transport, runner.layout, runner.checksums)
    watchdog = Watchdog(engine, receiver, STALLED_AFTER, lambda: now[0])
    lost = scheduler.cache.pool.allocate(5)  # as a defect might: blocks that nobody gives back
    engine.add(make_sequence("stuck", range(16), 4))
    engine.run_once()
    assert scheduler.stands_still and not scheduler.has_work
    now[0] = 2 * STALLED_AFTER
    found = watchdog.diagnose()
    assert found.condition is WorkerCondition.STALLED
    assert "although 1 wait, stuck#1 (no_blocks) first, and nothing runs" in found.cause
    scheduler.cache.pool.release(lost)
    engine.run_once()
    assert watchdog.diagnose().condition is WorkerCondition.READY
