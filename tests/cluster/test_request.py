"""Requests: the token log against a naive model, and when a token ends a sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.request import (
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StopRule,
    TokenLog,
)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@given(
    num_prompt=st.integers(1, 5),
    stream=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    pieces=st.lists(st.tuples(st.integers(0, 22), st.integers(0, 8)), max_size=20),
)
def test_the_log_is_the_stream_however_it_is_delivered(
    num_prompt: int, stream: list[int], pieces: list[tuple[int, int]]
) -> None:
    """Pieces of one stream arrive repeated, overlapping or too early; the model is a dict."""
    log = TokenLog(num_prompt)
    model: dict[int, int] = {}
    for start, length in pieces:
        piece = tuple(stream[start : start + length])
        if start > len(model):
            with pytest.raises(ValueError, match="missing"):
                log.accept(num_prompt + start, piece)
        else:
            new = {start + i: t for i, t in enumerate(piece) if start + i not in model}
            assert log.accept(num_prompt + start, piece) == tuple(new.values())
            model |= new
        assert log.produced == [model[i] for i in range(len(model))] == stream[: len(model)]
        assert log.next_position == num_prompt + len(model)


def test_a_gap_is_named_by_its_positions() -> None:
    log = TokenLog(num_prompt_tokens=3, produced=[7])
    with pytest.raises(ValueError, match="tokens 4 to 5 are missing"):
        log.accept(6, (1,))
    assert log.produced == [7]


def test_logs_do_not_share_their_tokens() -> None:
    TokenLog(1).accept(1, (5,))
    assert TokenLog(1).produced == []


@pytest.mark.parametrize(
    ("rule", "num_produced", "token", "expected"),
    [
        (StopRule(4), 1, 0, None),
        (StopRule(4), 3, 0, None),
        (StopRule(4), 4, 0, LENGTH),
        (StopRule(4), 5, 0, LENGTH),
        (StopRule(1), 1, 0, LENGTH),
        (StopRule(4, stop_token_ids=frozenset({2})), 1, 2, STOP),
        (StopRule(4, stop_token_ids=frozenset({2})), 1, 3, None),
        # Both at once: the model ended by itself.
        (StopRule(4, stop_token_ids=frozenset({2})), 4, 2, STOP),
        # min_tokens come before the stop token, which is not one of them.
        (StopRule(4, 2, frozenset({2})), 1, 2, None),
        (StopRule(4, 2, frozenset({2})), 2, 2, None),
        (StopRule(4, 2, frozenset({2})), 3, 2, STOP),
        (StopRule(2, 2, frozenset({2})), 2, 2, LENGTH),
    ],
)
def test_stop_rule(
    rule: StopRule, num_produced: int, token: int, expected: FinishReason | None
) -> None:
    assert rule.check(num_produced, token) is expected


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_a_stop_token_that_may_be_drawn_does_stop(most: int, least: int, number: int) -> None:
    """`forbids_stop` (before a token is drawn) and `check` (after) agree at every length."""
    rule = StopRule(most, least, frozenset({2}))
    stops = rule.check(number, 2) is STOP
    assert stops is not rule.forbids_stop(number - 1)


def test_a_request_knows_its_room() -> None:
    request = GenerationRequest("r", (1, 2, 3), SamplingParams(), StopRule(max_tokens=5))
    assert (request.num_prompt_tokens, request.max_total_tokens) == (3, 8)
