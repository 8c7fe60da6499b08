"""Workers that are full: they are waited for, in order and for a limited time, at no attempt."""

import asyncio

import pytest
from journey_rig import Rig, until
from scripted_worker import scripted_worker

from segue.cluster.errors import AttemptFailed, FailureKind, Overloaded
from segue.cluster.handoff import Failure
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason

FULL = AttemptFailed(FailureKind.BUSY, "2048 attempts are here already")
NO_ROOM = Failure(FailureKind.BUSY, "2048 attempts are here already")


async def test_a_full_worker_costs_no_attempt() -> None:
    rig = Rig(max_attempts=1)
    async with scripted_worker("both") as worker:
        worker.refusal = FULL
        await rig.connect(worker)
        answer = rig.ask()
        await until(lambda: rig.journeys.counters.failures["busy"] >= 3)
        worker.refusal = None
        await until(lambda: worker.submitted)
        attempt = worker.submitted[0][0].attempt_id
        worker.say(attempt, 3, 50, finish=FinishReason.STOP)
        await answer.end()
        assert answer.tokens == [50] and set(rig.journeys.counters.failures) == {"busy"}
        assert rig.journeys.counters.recovered == 0
        await rig.close()


async def test_who_finds_no_room_in_time_is_told_to_come_again() -> None:
    """As one is whom admission turns away."""
    rig = Rig(max_attempts=2, full_wait_s=0.4, retry_after_s=7)
    async with scripted_worker("both") as worker:
        worker.refusal = FULL
        await rig.connect(worker)
        with pytest.raises(Overloaded, match="is full") as caught:
            await rig.ask().end()
        assert caught.value.retry_after_seconds == 7
        assert rig.journeys.counters.rungs["refused"] == 1
        await rig.close()


async def test_another_worker_that_has_room_is_taken_at_once() -> None:
    rig = Rig(max_attempts=1, full_wait_s=0.0)
    async with scripted_worker("both", "a") as full, scripted_worker("both", "b") as other:
        full.refusal = FULL
        await rig.connect(full, other)
        answers = [rig.ask(name) for name in ("r", "s")]
        await until(lambda: len(other.submitted) == 2)
        for assignment, _ in other.submitted:
            other.say(assignment.attempt_id, 3, 50, finish=FinishReason.STOP)
        for answer in answers:
            await answer.end()
            assert answer.tokens == [50]
        await rig.close()


async def test_a_full_decode_worker_is_waited_for_and_not_stood_in_for() -> None:
    """The prefill worker could write the answer too; then it would be full next."""
    rig = Rig(max_attempts=1)
    async with scripted_worker("prefill") as prefill, scripted_worker("decode") as decode:
        await rig.connect(prefill, decode)
        answer = rig.ask()
        for number in (1, 2, 3):
            await until(lambda number=number: len(prefill.submitted) == number)  # type: ignore[misc]
            prefill.say(AttemptId("r", number), 3, failure=NO_ROOM)
        await until(lambda: len(prefill.submitted) == 4)
        assert all(writer is not None for _, writer in prefill.submitted)
        decode.say(AttemptId("r", 4), 3, 50, finish=FinishReason.STOP)
        await answer.end()
        assert answer.tokens == [50]
        assert rig.journeys.counters.failures == {"busy": 3}
        assert set(rig.journeys.counters.rungs) == {"disaggregated"}
        await rig.close()


async def test_all_who_wait_come_in_as_soon_as_one_was_taken_the_first_first() -> None:
    rig = Rig(max_attempts=1)
    names = [f"r{number}" for number in range(20)]
    async with scripted_worker("both") as worker:
        worker.refusal = FULL
        await rig.connect(worker)
        answers = []
        for name in names:
            answers.append(rig.ask(name))
            await until(lambda: len(rig.journeys.running) == len(answers))
        await until(lambda: rig.journeys.counters.failures["busy"] >= 4)
        assert rig.journeys.counters.num_waiting() >= len(names) - 1
        turned_away = rig.journeys.counters.failures["busy"]
        worker.refusal = None
        await until(lambda: worker.submitted)
        first = worker.submitted[0][0]
        assert first.request.request_id == names[0]
        worker.say(first.attempt_id, 3, 50)
        await until(lambda: len(worker.submitted) == len(names), timeout_s=2.0)
        assert [a.request.request_id for a, _ in worker.submitted] == names
        assert rig.journeys.counters.failures["busy"] - turned_away <= 1
        worker.say(first.attempt_id, 4, 51, finish=FinishReason.STOP)
        for assignment, _ in worker.submitted[1:]:
            worker.say(assignment.attempt_id, 3, 50, finish=FinishReason.STOP)
        await asyncio.gather(*(answer.end() for answer in answers))
        await rig.close()
