"""What gathers for a gateway: merged, in order, once; and what happens when it does not listen."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import AttemptFailed, FailureKind, StaleReference
from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.workers.frame_outbox import MAX_GATEWAYS, FrameOutbox

ABSENCE = 0.05


def delta(
    position: int, *tokens: int, name: str = "r", finish: FinishReason | None = None
) -> TokenDelta:
    return TokenDelta(AttemptId(name, 1), position, tokens, finish)


def lost(position: int) -> TokenDelta:
    failure = Failure(FailureKind.PEER_LOST, "gone")
    return TokenDelta(AttemptId("r", 1), position, failure=failure)


@pytest.fixture
def absent() -> list[str]:
    return []


@pytest.fixture
def outbox(absent: list[str]) -> FrameOutbox:
    return FrameOutbox(absent.append, ABSENCE)


async def test_the_first_frame_comes_at_once(outbox: FrameOutbox) -> None:
    async with asyncio.timeout(1), aclosing(outbox.listen("g")) as frames:
        assert await anext(frames) == []
        outbox.put("g", delta(3, 7))
        assert await anext(frames) == [delta(3, 7)]


@given(st.lists(st.sampled_from("put take".split()), max_size=30))
def test_whatever_is_put_arrives_once_and_in_order(events: list[str]) -> None:
    async def play() -> None:
        outbox = FrameOutbox(lambda gateway: None, ABSENCE)
        outbox.expect("g")
        position, received = 0, list[int]()
        async with aclosing(outbox.listen("g")) as frames:
            waiting = await anext(frames) == []
            assert waiting
            unread = False
            for event in [*events, "put", "take"]:
                if event == "put":
                    outbox.put("g", delta(position, position))
                    position, unread = position + 1, True
                elif unread:
                    (frame,) = await anext(frames)
                    assert frame.position == len(received)
                    received.extend(frame.token_ids)
                    unread = False
            assert received == list(range(position))
        outbox.close()

    asyncio.run(play())


async def test_a_failure_joins_the_tokens_before_it(outbox: FrameOutbox) -> None:
    outbox.expect("g")
    outbox.put("g", delta(5, 1, 2))
    outbox.put("g", lost(5))
    outbox.put("g", lost(5))  # told by two, ended once
    async with aclosing(outbox.listen("g")) as frames:
        (merged,) = await anext(frames)
    assert (merged.position, merged.token_ids) == (5, (1, 2))
    assert merged.failure is not None and merged.finish is None
    outbox.close()


async def test_nothing_follows_an_end(outbox: FrameOutbox) -> None:
    outbox.expect("g")
    outbox.put("g", delta(5, 1, finish=FinishReason.STOP))
    outbox.put("g", lost(5))
    async with aclosing(outbox.listen("g")) as frames:
        (merged,) = await anext(frames)
    assert merged.finish is FinishReason.STOP and merged.failure is None
    outbox.close()


async def test_a_second_stream_takes_over(outbox: FrameOutbox) -> None:
    first, second = outbox.listen("g"), outbox.listen("g")
    assert await anext(first) == [] and await anext(second) == []
    outbox.put("g", delta(0, 1))
    with pytest.raises(StaleReference):
        await anext(first)
    assert await anext(second) == [delta(0, 1)]
    await second.aclose()
    outbox.close()


async def test_a_gateway_that_never_listens_is_reported(
    outbox: FrameOutbox, absent: list[str]
) -> None:
    outbox.expect("g")
    await asyncio.sleep(ABSENCE * 3)
    assert absent == ["g"]


async def test_a_gateway_that_stops_listening_is_reported_and_forgotten(
    outbox: FrameOutbox, absent: list[str]
) -> None:
    frames = outbox.listen("g")
    await anext(frames)
    await asyncio.sleep(ABSENCE * 3)
    assert absent == []
    await frames.aclose()
    await asyncio.sleep(ABSENCE * 3)
    assert absent == ["g"]
    outbox.put("g", delta(0, 1))  # late words do not bring it back
    async with aclosing(outbox.listen("g")) as again:
        assert await anext(again) == []
    outbox.close()


async def test_a_gateway_that_comes_back_in_time_is_not_reported(
    outbox: FrameOutbox, absent: list[str]
) -> None:
    frames = outbox.listen("g")
    await anext(frames)
    await frames.aclose()
    async with aclosing(outbox.listen("g")) as again:
        await anext(again)
        await asyncio.sleep(ABSENCE * 3)
        assert absent == []
    outbox.close()


async def test_too_many_gateways_are_refused_before_any_work_is_done(outbox: FrameOutbox) -> None:
    for number in range(MAX_GATEWAYS):
        outbox.expect(f"g{number}")
    with pytest.raises(AttemptFailed) as refusal:
        outbox.expect("one more")
    assert refusal.value.retryable and refusal.value.failure is FailureKind.BUSY
    outbox.put("one more", delta(0, 1))  # never fails
    outbox.close()


async def test_a_gap_fails_its_attempt_and_keeps_what_came_before(outbox: FrameOutbox) -> None:
    outbox.expect("g")
    outbox.put("g", delta(5, 1, 2))
    outbox.put("g", delta(8, 4))
    outbox.put("g", delta(9, 5))
    outbox.put("g", delta(0, 7, name="other"))
    async with aclosing(outbox.listen("g")) as frames:
        torn, other = await anext(frames)
    assert (torn.token_ids, torn.finish) == ((1, 2), None)
    assert torn.failure is not None and torn.failure.retryable
    assert torn.failure.message == "tokens [7, 8) were lost in the worker"
    assert other == delta(0, 7, name="other")
    outbox.close()
