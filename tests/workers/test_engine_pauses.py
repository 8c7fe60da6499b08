"""Pause and resume in the engine: no token twice, none lost, none different, nothing leaked."""

import pytest
from engine_desk import Desk
from engine_parts import PEER, expected_tokens
from engine_parts import make_sequence as sequence_of
from engine_traffic import Shape, all_are_answered, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.cluster.handoff import TokenDelta
from segue.workers.sequence import Phase, Sequence


def test_a_paused_answer_goes_on_where_it_stopped() -> None:
    desk = Desk()
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    sequences = [sequence_of(name, prompt, 30) for name, prompt in prompts.items()]
    for sequence in sequences:
        desk.engine.add(sequence)
    desk.run(lambda: len(desk.ended) == 2)
    assert [sequence.num_pauses for sequence in sequences] == [0, 1]
    assert desk.engine.counters.pauses == 1
    for name, prompt in prompts.items():
        assert desk.tokens(name) == expected_tokens(prompt, 30)
    desk.assert_idle()


def test_what_had_landed_is_computed_here_after_a_pause() -> None:
    desk = Desk()
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8, 9]}
    for name, prompt in prompts.items():
        desk.engine.add(sequence_of(name, prompt, 30, source=PEER))
    desk.run(lambda: len(desk.ended) == 2)
    assert desk.engine.counters.pauses >= 1
    for name, prompt in prompts.items():
        assert desk.tokens(name) == expected_tokens(prompt, 30)
    desk.assert_idle()


def test_what_is_landing_is_never_paused() -> None:
    desk = Desk(num_blocks=6)
    landing = sequence_of("landing", range(8), 8, source=PEER, priority=5)
    landing_done: list[Sequence] = []
    desk._land = landing_done.append  # type: ignore[method-assign, assignment]
    desk.engine.add(landing)
    desk.engine.add(sequence_of("a", [1, 2, 3], 20))
    desk.run(lambda: "a" in desk.deltas and len(desk.tokens("a")) > 10)
    desk.run(lambda: landing.phase is Phase.LANDING, limit=1)
    for _ in range(30):
        desk.engine.run_once()
    assert landing.phase is Phase.LANDING and landing.num_pauses == 0
    assert landing_done == [landing] and desk.ended == []
    Desk._land(desk, landing)
    desk.run(lambda: len(desk.ended) == 2)
    assert desk.tokens("a") == expected_tokens([1, 2, 3], 20)
    assert desk.tokens("landing") == expected_tokens(range(8), 8)
    desk.assert_idle()


def test_dropping_what_is_paused_frees_nothing_twice() -> None:
    desk = Desk()
    first, second = sequence_of("a", [1, 2, 3, 4], 30), sequence_of("b", [5, 6, 7, 8], 30)
    desk.engine.add(first)
    desk.engine.add(second)
    desk.run(lambda: second.num_pauses == 1)
    assert second.phase is Phase.QUEUED and second.block_ids == []
    assert desk.engine.drop(second)
    assert not desk.engine.drop(second)
    desk.run(lambda: desk.ended == ["a"])
    desk.assert_idle()


@settings(max_examples=60, deadline=None)
@given(shapes(8), st.integers(11, 16), st.integers(2, 5))
def test_answers_do_not_depend_on_pauses(of: list[Shape], num_blocks: int, slots: int) -> None:
    all_are_answered(Desk(num_blocks, slots), of)


def test_a_desk_notices_a_repeated_token() -> None:
    desk = Desk()
    delta = TokenDelta(sequence_of("a", [1], 2).attempt, 1, (5,))
    desk.deltas["a"] = [delta, delta]
    with pytest.raises(AssertionError):
        desk.tokens("a")
