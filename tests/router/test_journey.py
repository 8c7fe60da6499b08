"""One request through workers that refuse, break off, contradict each other or stay silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import pytest_asyncio
from journey_rig import Rig, until
from scripted_worker import ScriptedWorker, scripted_worker

from segue.cluster.errors import (
    AttemptFailed,
    DeadlineExceeded,
    FailureKind,
    InvalidRequest,
    SegueError,
    Unavailable,
)
from segue.cluster.fleet import FleetView, WorkerState
from segue.cluster.handoff import Failure
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.cluster.worker_status import WorkerCondition, WorkerStatus


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(max_attempts=3, worker_wait_s=1.0)
    yield rig
    await rig.close()


@pytest_asyncio.fixture
async def prefill(rig: Rig) -> AsyncIterator[ScriptedWorker]:
    async with scripted_worker("prefill") as worker:
        yield worker


@pytest_asyncio.fixture
async def decode(rig: Rig) -> AsyncIterator[ScriptedWorker]:
    async with scripted_worker("decode") as worker:
        yield worker


async def test_the_seam_is_not_seen(
    rig: Rig, prefill: ScriptedWorker, decode: ScriptedWorker
) -> None:
    await rig.connect(prefill, decode)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    prefill.say(AttemptId("r", 1), 3, 50)
    await until(lambda: answer.tokens == [50])
    decode.say(AttemptId("r", 1), 3, 50, 51)  # it repeats the first one
    decode.say(AttemptId("r", 1), 5, 52, finish=FinishReason.STOP)
    await answer.end()
    assert (answer.tokens, answer.finish) == ([50, 51, 52], FinishReason.STOP)
    assert prefill.aborted == decode.aborted == []


async def test_after_the_seam_the_prefill_worker_may_die(
    rig: Rig, prefill: ScriptedWorker, decode: ScriptedWorker
) -> None:
    await rig.connect(prefill, decode)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    decode.say(AttemptId("r", 1), 3, 50)  # overtakes the prefill worker's own report
    await until(lambda: answer.tokens == [50])
    prefill.say(AttemptId("r", 1), 3, 50)
    prefill.hang_up()
    await until(lambda: not rig.links.usable(prefill.identity))
    decode.say(AttemptId("r", 1), 4, 51, finish=FinishReason.LENGTH)
    await answer.end()
    assert answer.tokens == [50, 51] and not rig.journeys.counters.failures


async def test_what_a_zombie_says_reaches_nobody(
    rig: Rig, prefill: ScriptedWorker, decode: ScriptedWorker
) -> None:
    """The first attempt's worker was silent for a while, and goes on after the second began."""
    await rig.connect(prefill, decode)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    decode.say(AttemptId("r", 1), 3, 50, 51)
    await until(lambda: answer.tokens == [50, 51])
    decode.hang_up()
    await until(lambda: len(prefill.submitted) == 2)
    resumed, second_decode = prefill.submitted[1]
    assert (resumed.attempt, resumed.produced_token_ids) == (2, (50, 51))
    assert second_decode is None  # the one that broke off is avoided
    await until(lambda: rig.links.usable(decode.identity))
    decode.say(AttemptId("r", 1), 5, 666)
    decode.say(AttemptId("r", 2), 5, 667)  # not one of the second attempt's workers
    await until(lambda: {AttemptId("r", 1), AttemptId("r", 2)} <= set(decode.aborted))
    prefill.say(AttemptId("r", 2), 5, 52, finish=FinishReason.STOP)
    await answer.end()
    assert answer.tokens == [50, 51, 52]
    assert rig.journeys.counters.recovered == 1
    assert rig.journeys.counters.rungs == {"disaggregated": 1, "decode_on_prefill": 1}


async def test_a_gap_in_the_tokens_fails_the_attempt(rig: Rig, prefill: ScriptedWorker) -> None:
    await rig.connect(prefill)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    prefill.say(AttemptId("r", 1), 3, 50)
    prefill.say(AttemptId("r", 1), 6, 53)
    await until(lambda: len(prefill.submitted) == 2)
    assert AttemptId("r", 1) in prefill.aborted
    prefill.say(AttemptId("r", 2), 4, 51, finish=FinishReason.STOP)
    await answer.end()
    assert answer.tokens == [50, 51]


@pytest.mark.parametrize(
    "refusal",
    [
        AttemptFailed(FailureKind.DRAINING, "no more"),
        Unavailable("not now"),
        DeadlineExceeded("too slow"),
    ],
)
async def test_who_refuses_is_not_asked_twice(rig: Rig, refusal: SegueError) -> None:
    async with scripted_worker("both", "a") as first, scripted_worker("both", "b") as second:
        first.refusal = refusal
        await rig.connect(first, second)
        answer = rig.ask()
        await until(lambda: second.submitted)
        second.say(AttemptId("r", 2), 3, 50, finish=FinishReason.STOP)
        await answer.end()
        assert answer.tokens == [50] and not first.submitted


async def test_a_worker_that_leaves_costs_no_attempt() -> None:
    """Nor is it asked again, by this request or another one, before the view tells of it."""
    rig = Rig(max_attempts=1, worker_wait_s=0.3)
    async with AsyncExitStack() as stack:
        leavers = [
            await stack.enter_async_context(scripted_worker("both", name)) for name in ("a", "b")
        ]
        stays = await stack.enter_async_context(scripted_worker("both", "c"))
        for leaver in leavers:
            leaver.refusal = AttemptFailed(FailureKind.DRAINING, "no more")
        await rig.connect(*leavers, stays)
        answer = rig.ask()
        await until(lambda: stays.submitted)
        stays.say(AttemptId("r", 3), 3, 50, finish=FinishReason.STOP)
        await answer.end()
        counters = rig.journeys.counters
        assert (answer.tokens, counters.failures, counters.recovered) == ([50], {"draining": 2}, 0)
        stays.refusal = AttemptFailed(FailureKind.DRAINING, "no more")
        with pytest.raises(Unavailable, match="no worker is ready"):
            await rig.ask("s").end()
        assert counters.failures == {"draining": 3} and counters.rungs["refused"] == 1
    await rig.close()


async def test_a_decode_worker_that_leaves_is_not_asked_again(
    rig: Rig, prefill: ScriptedWorker, decode: ScriptedWorker
) -> None:
    await rig.connect(prefill, decode)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    prefill.say(AttemptId("r", 1), 3, failure=Failure(FailureKind.DRAINING, "it takes no more"))
    await until(lambda: len(prefill.submitted) == 2)
    prefill.say(AttemptId("r", 2), 3, failure=Failure(FailureKind.COMPUTE, "broken"))
    await until(lambda: len(prefill.submitted) == 3)
    assert [writer for _, writer in prefill.submitted[1:]] == [None, None] and not decode.submitted
    prefill.say(AttemptId("r", 3), 3, 50, finish=FinishReason.STOP)
    await answer.end()
    assert rig.journeys.counters.failures == {"draining": 1, "compute": 1}


async def test_what_no_worker_can_do_is_not_tried_twice(rig: Rig, prefill: ScriptedWorker) -> None:
    await rig.connect(prefill)
    prefill.refusal = InvalidRequest("no such token")
    with pytest.raises(AttemptFailed, match="no such token"):
        await rig.ask().end()
    assert rig.journeys.counters.failures == {"refused": 1}


async def test_attempts_are_counted_and_end(rig: Rig, prefill: ScriptedWorker) -> None:
    await rig.connect(prefill)
    answer = rig.ask()
    for number in (1, 2, 3):
        await until(lambda number=number: len(prefill.submitted) == number)  # type: ignore[misc]
        failure = Failure(FailureKind.TRANSFER, "again")
        prefill.say(AttemptId("r", number), 3, failure=failure)
    with pytest.raises(Unavailable, match="gave up after 3 attempts; the last one: again"):
        await answer.end()
    assert rig.journeys.counters.failures == {"transfer": 3}


async def test_nobody_ready_is_said_at_once(rig: Rig) -> None:
    with pytest.raises(Unavailable, match="no worker is ready"):
        async with asyncio.timeout(0.5):
            await rig.ask().end()


@pytest.mark.parametrize(
    ("condition", "served"), [(WorkerCondition.READY, True), (WorkerCondition.STALLED, False)]
)
async def test_workers_that_only_the_controller_cannot_hear(
    rig: Rig, prefill: ScriptedWorker, condition: WorkerCondition, served: bool
) -> None:
    """It is cut off, or was; the gateway is not. One that says itself that it is stuck is left."""
    await rig.connect(prefill)
    status = WorkerStatus(prefill.identity, "prefill", condition)
    doubted = replace(prefill.view, state=WorkerState.SUSPECT, status=status)
    rig.watcher.view = FleetView(workers=(doubted,))
    answer = rig.ask()
    if not served:
        with pytest.raises(Unavailable):
            await answer.end()
        return
    await until(lambda: prefill.submitted)
    prefill.say(AttemptId("r", 1), 3, 50, finish=FinishReason.STOP)
    await answer.end()
    assert answer.tokens == [50]


async def test_a_pair_that_is_half_heard_comes_before_a_worse_rung(
    rig: Rig, prefill: ScriptedWorker, decode: ScriptedWorker
) -> None:
    await rig.connect(prefill, decode)
    doubted = replace(decode.view, state=WorkerState.SUSPECT, reason="silent for 3.0 s")
    rig.watcher.view = FleetView(workers=(prefill.view, doubted))
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    prefill.say(AttemptId("r", 1), 3, 50)
    decode.say(AttemptId("r", 1), 4, 51, finish=FinishReason.STOP)
    await answer.end()
    assert answer.tokens == [50, 51]
    assert rig.journeys.counters.rungs == {"disaggregated": 1}


async def test_a_worker_that_does_not_greet_gets_nothing(rig: Rig) -> None:
    """It accepts connections, as a stopped process does; that proves nothing."""
    async with scripted_worker("both", greets=False) as worker:
        rig.show(worker)
        with pytest.raises(Unavailable, match="no worker is ready"):
            await rig.ask().end()
        assert not worker.submitted


async def test_a_worker_that_was_just_listed_is_waited_for(
    rig: Rig, prefill: ScriptedWorker
) -> None:
    rig.show(prefill)  # and not connected yet
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    prefill.say(AttemptId("r", 1), 3, 50, finish=FinishReason.STOP)
    await answer.end()
    assert answer.tokens == [50]


async def test_a_started_request_waits_for_a_worker_to_come_back(rig: Rig) -> None:
    async with scripted_worker("both") as first:
        await rig.connect(first)
        answer = rig.ask()
        await until(lambda: first.submitted)
        first.say(AttemptId("r", 1), 3, 50)
        await until(lambda: answer.tokens)
    rig.show()
    await asyncio.sleep(0.3)
    async with scripted_worker("both") as second:
        rig.show(second)
        await until(lambda: second.submitted)
        second.say(AttemptId("r", 2), 4, 51, finish=FinishReason.STOP)
        await answer.end()
        assert answer.tokens == [50, 51]


async def test_it_does_not_wait_for_ever(rig: Rig) -> None:
    async with scripted_worker("both") as worker:
        await rig.connect(worker)
        answer = rig.ask()
        await until(lambda: worker.submitted)
    with pytest.raises(Unavailable, match="no worker is ready"):
        await answer.end()


async def test_silence_ends_with_the_deadline_and_an_abort() -> None:
    rig = Rig(timeout_s=0.3)
    async with scripted_worker("prefill") as prefill, scripted_worker("decode") as decode:
        await rig.connect(prefill, decode)
        with pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
            await rig.ask().end()
        await until(lambda: prefill.aborted and decode.aborted)
        await rig.close()


async def test_a_workers_deadline_is_a_deadline(rig: Rig, prefill: ScriptedWorker) -> None:
    await rig.connect(prefill)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    failure = Failure(FailureKind.DEADLINE, "too late", retryable=False)
    prefill.say(AttemptId("r", 1), 3, failure=failure)
    with pytest.raises(DeadlineExceeded, match="too late"):
        await answer.end()


@pytest.mark.parametrize("after_first_token", [False, True])
async def test_a_client_that_leaves_is_told_to_both(
    rig: Rig, prefill: ScriptedWorker, decode: ScriptedWorker, after_first_token: bool
) -> None:
    await rig.connect(prefill, decode)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    if after_first_token:
        prefill.say(AttemptId("r", 1), 3, 50)
        await until(lambda: answer.tokens)
    assert answer.task is not None
    answer.task.cancel()
    await asyncio.gather(answer.task, return_exceptions=True)
    await until(lambda: prefill.aborted and decode.aborted)
    assert set(prefill.aborted) == set(decode.aborted) == {AttemptId("r", 1)}


@pytest.mark.parametrize(
    ("reporter", "kind", "expected"),
    [
        ("decode", FailureKind.TRANSFER, "prefill_on_decode"),
        ("decode", FailureKind.FENCED, "prefill_on_decode"),
        ("prefill", FailureKind.CREDIT_TIMEOUT, "decode_on_prefill"),
        ("prefill", FailureKind.CREDIT_REFUSED, "decode_on_prefill"),
        ("prefill", FailureKind.PEER_LOST, "decode_on_prefill"),
        ("decode", FailureKind.COMPUTE, "decode_on_prefill"),
        ("prefill", FailureKind.COMPUTE, "prefill_on_decode"),
    ],
)
async def test_the_next_rung_avoids_whose_fault_it_was(
    rig: Rig,
    prefill: ScriptedWorker,
    decode: ScriptedWorker,
    reporter: str,
    kind: FailureKind,
    expected: str,
) -> None:
    await rig.connect(prefill, decode)
    answer = rig.ask()
    await until(lambda: prefill.submitted)
    workers = {"prefill": prefill, "decode": decode}
    workers[reporter].say(AttemptId("r", 1), 3, failure=Failure(kind, "broken"))
    await until(lambda: len(prefill.submitted) + len(decode.submitted) == 2)
    assert rig.journeys.counters.rungs[expected] == 1
    for worker in workers.values():
        worker.say(AttemptId("r", 2), 3, 50, finish=FinishReason.STOP)
    await answer.end()
    assert answer.tokens == [50]


async def test_at_the_end_of_a_named_ladder_the_request_is_refused() -> None:
    rig = Rig(max_attempts=4, worker_wait_s=0.3, ladder="pairs_only")
    async with scripted_worker("prefill") as prefill, scripted_worker("decode") as decode:
        await rig.connect(prefill, decode)
        answer = rig.ask()
        await until(lambda: prefill.submitted)
        prefill.say(AttemptId("r", 1), 3, failure=Failure(FailureKind.PEER_LOST, "no peer"))
        await until(lambda: len(prefill.submitted) == 2)  # rather than the prefill worker alone
        assert prefill.submitted[1][1] is not None
        rig.show(prefill)
        prefill.say(AttemptId("r", 2), 3, failure=Failure(FailureKind.PEER_LOST, "no peer"))
        with pytest.raises(Unavailable, match="no decode worker is ready.*pairs_only") as caught:
            await answer.end()
        assert caught.value.retry_after_seconds > 0
        with pytest.raises(Unavailable, match="no decode worker is ready"):
            await rig.ask("s").end()
        assert rig.journeys.counters.rungs == {"disaggregated": 1, "other_pair": 1, "refused": 2}
    await rig.close()
