"""One stream: what counts as a token's arrival, and every way in which an answer is not whole."""

from typing import Any

import orjson
import pytest

from segue.bench.measurement import Fault, Measurement
from segue.bench.stream_reading import StreamReading

USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def text(value: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": value, "finish_reason": finish}], "usage": None}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def read(*events: dict[str, Any] | str) -> StreamReading:
    """Event i arrives at i seconds."""
    reading = StreamReading()
    for at, event in enumerate(events):
        payload = event.encode() if isinstance(event, str) else orjson.dumps(event)
        reading.observe(payload, float(at))
    return reading


def test_a_whole_completion() -> None:
    reading = read(text("a"), text("b", "length"), USAGE, "[DONE]")
    assert reading.verdict(2) is None
    assert (reading.chunks_s, reading.finish_s, reading.done_s) == ([0.0, 1.0], 1.0, 3.0)
    assert (reading.prompt_tokens, reading.output_tokens) == (5, 2)


def test_the_role_and_the_finish_of_a_chat_are_no_tokens() -> None:
    reading = read(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="b"),
        delta(finish="length"),
        USAGE,
        "[DONE]",
    )
    assert reading.verdict(2) is None
    assert (reading.chunks_s, reading.finish_s) == ([1.0, 2.0], 3.0)


END = text("b", "length")


@pytest.mark.parametrize(
    ("events", "fault", "detail"),
    [
        ([], Fault.TRUNCATED, "no finish reason after 0 chunks"),
        ([text("a")], Fault.TRUNCATED, "no finish reason after 1 chunks"),
        ([text("a"), "[DONE]"], Fault.TRUNCATED, "no finish reason after 1 chunks"),
        ([text("a"), END, USAGE], Fault.TRUNCATED, "no [DONE]"),
        ([text("a"), END, "[DONE]"], Fault.NO_USAGE, "cannot be counted"),
        ([text("a", "stop"), USAGE, "[DONE]"], Fault.WRONG_LENGTH, "2 tokens instead of 3"),
        ([text("a"), {"error": {"message": "boom"}}], Fault.STREAM_ERROR, "boom"),
        ([{"error": "boom"}, END, USAGE, "[DONE]"], Fault.STREAM_ERROR, "boom"),
        ([{"object": "error", "message": "old"}], Fault.STREAM_ERROR, "old"),
    ],
)
def test_what_is_not_whole_is_named(events: list[Any], fault: Fault, detail: str) -> None:
    failure = read(*events).verdict(3)
    assert failure is not None
    assert failure.fault is fault
    assert detail in failure.detail


@pytest.mark.parametrize("payload", ["{", "[1]", "3"])
def test_what_is_no_event_is_refused(payload: str) -> None:
    with pytest.raises(ValueError):
        read(payload)


def test_latencies_of_one_request() -> None:
    """Four tokens in three chunks: two gaps between chunks, three steps between tokens."""
    request = Measurement(0.0, 8.0, (2.0, 3.0, 7.0), 7.5, 5, 4)
    assert request.ttft_s == 2.0
    assert request.gaps_s == (1.0, 4.0)
    assert request.tpot_s == pytest.approx(5.5 / 3)


def test_an_answer_without_text_still_has_a_first_token() -> None:
    assert Measurement(0.0, 8.0, (), 7.0, 5, 1).ttft_s == 7.0
    assert Measurement(0.0, 8.0, (), 7.0, 5, 1).tpot_s is None
