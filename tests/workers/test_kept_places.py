"""How long a request has waited goes with it, to whichever worker it comes next."""

import asyncio
import time
from dataclasses import replace

from journey_rig import Rig, until
from scripted_worker import scripted_worker
from worker_pair import Pair, worker_pair
from worker_trio import trio

from segue.cluster.errors import FailureKind
from segue.cluster.handoff import Assignment, Failure, Reservation, ReserveOutcome
from segue.cluster.identity import AttemptId
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.workers.service import WorkerService

AGE = 100.0  # far more than any of these tests takes


def aged(pair: Pair, name: str = "r") -> Assignment:
    request = GenerationRequest(
        name, tuple(range(50, 70)), SamplingParams(temperature=0.0), StopRule(8)
    )
    return Assignment(request, 1, (), pair.links.gateway_id, 20.0, AGE)


async def test_a_second_try_says_how_long_the_request_has_waited() -> None:
    rig = Rig(max_attempts=3, worker_wait_s=1.0)
    try:
        async with scripted_worker("prefill") as prefill, scripted_worker("decode") as decode:
            await rig.connect(prefill, decode)
            answer = rig.ask()
            await until(lambda: prefill.submitted)
            seen = time.monotonic()
            await asyncio.sleep(0.05)
            passed = time.monotonic() - seen
            failure = Failure(FailureKind.COMPUTE, "broken")
            prefill.say(AttemptId("r", 1), 3, failure=failure)
            await until(lambda: len(prefill.submitted + decode.submitted) == 2)
            first, second = (work for work, _ in prefill.submitted + decode.submitted)
            assert second.waited_seconds >= first.waited_seconds + passed
            assert second.timeout_seconds <= first.timeout_seconds - passed
            assert answer.task is not None
            answer.task.cancel()
            await asyncio.gather(answer.task, return_exceptions=True)
    finally:
        await rig.close()


async def test_it_goes_from_the_gateway_to_the_decode_worker() -> None:
    async with worker_pair(num_blocks=8) as pair:
        pair.decode.runner.gate.clear()
        pair.prefill.runner.gate.clear()
        work, nodes = aged(pair), (pair.prefill, pair.decode)
        await pair.prefill.client.submit(work, pair.decode.peer, deadline_s=5)
        await pair.until(lambda: pair.decode.service.attempts.get(work.attempt_id))
        for node in nodes:
            running = node.service.attempts.get(work.attempt_id)
            assert running is not None
            assert AGE <= time.monotonic() - running.sequence.arrived < AGE + 50
            assert not running.sequence.moves
        local = aged(pair, "local")
        await pair.decode.client.submit(local, None, deadline_s=5)
        running = pair.decode.service.attempts.get(local.attempt_id)
        assert running is not None and running.sequence.waited(time.monotonic()) >= AGE
        for node in nodes:
            await node.client.abort([work.attempt_id, local.attempt_id], deadline_s=5)
            node.runner.gate.set()
        await pair.settled()


async def test_a_credit_is_awaited_from_when_it_was_asked_for() -> None:
    async with worker_pair(num_blocks=8) as pair:
        pair.decode.runner.gate.clear()
        holder = asyncio.create_task(pair.ask(range(20), 8))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        asked = Reservation(aged(pair), pair.prefill.peer, "lease", 20.0)
        call = asyncio.create_task(pair.decode.client.reserve(asked, deadline_s=30))
        gauges = pair.decode.service.decode.credits.gauges
        await pair.until(lambda: gauges()["credits_waiting"])
        assert gauges()["credit_oldest_wait_seconds"] < AGE / 2
        assert gauges()["credit_next_deadline_seconds"] > 0
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        pair.decode.runner.gate.set()
        await holder
        await pair.settled()


async def test_it_moves_with_the_request() -> None:
    noted: list[Reservation] = []

    class Noting(WorkerService):
        async def reserve(self, reservation: Reservation) -> ReserveOutcome:
            noted.append(reservation)
            return await super().reserve(reservation)

    class Old(WorkerService):
        async def reserve(self, reservation: Reservation) -> ReserveOutcome:
            aged = replace(reservation.assignment, waited_seconds=AGE)
            return await super().reserve(replace(reservation, assignment=aged))

    async with trio(source=Old, target=Noting) as three:
        await three.move(5)
        assert three.outcomes == {"moved": 1}
        (asked,) = noted
        assert asked.grows and AGE < asked.assignment.waited_seconds < AGE + 50
        await three.settled()
