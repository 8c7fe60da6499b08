"""Answers that outgrow what was promised: nobody freezes, starves or gets another answer."""

import pytest
from engine_desk import Desk
from engine_parts import PEER, expected_tokens
from engine_parts import make_sequence as sequence_of
from engine_traffic import Shape, all_are_answered, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.workers.sequence import Sequence


class Balance(Desk):
    """What is promised is there at any time."""

    def _hear(self, outcome: object) -> None:
        super()._hear(outcome)  # type: ignore[arg-type]
        cache = self.engine.cache
        assert cache.promised_blocks <= cache.pool.num_available


def test_more_are_admitted_than_if_all_answers_were_long() -> None:
    def waiting_behind_the_first_step(expected_output: str | int) -> int:
        desk = Balance(10, policy="guaranteed_no_evict", expected_output=expected_output)
        for token in range(4):
            stop = frozenset({expected_tokens([token] * 4, 3)[-1]})
            desk.engine.add(sequence_of(str(token), [token] * 4, 28, stop=stop))
        desk.engine.run_once()
        waiting = len(desk.engine.scheduler.waiting)
        desk.run(lambda: len(desk.ended) == 4)
        assert desk.engine.counters.pauses == 0
        desk.assert_idle()
        return waiting

    assert waiting_behind_the_first_step("full") == 3
    assert waiting_behind_the_first_step(4) == 0


def test_the_last_one_gives_way_and_comes_back_with_room_to_its_end() -> None:
    desk = Balance(10, policy="guaranteed_no_evict", expected_output=4)
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    sequences = [sequence_of(name, prompt, 30) for name, prompt in prompts.items()]
    for sequence in sequences:
        desk.engine.add(sequence)
    desk.run(lambda: sequences[1].num_pauses == 1)
    desk.run(lambda: len(desk.ended) == 1)
    assert desk.ended == ["a"] and sequences[0].num_pauses == 0
    desk.run(lambda: bool(sequences[1].block_ids), limit=3)
    assert sequences[1].max_blocks == 9  # of 34 tokens
    desk.run(lambda: len(desk.ended) == 2)
    for name, prompt in prompts.items():
        assert desk.tokens(name) == expected_tokens(prompt, 30)
    desk.assert_idle()


def test_the_head_of_the_queue_waits_only_for_what_is_landing() -> None:
    desk = Balance(8, policy="guaranteed_no_evict", expected_output=2)
    arriving: list[Sequence] = []
    desk._land = arriving.append  # type: ignore[method-assign, assignment]
    head = sequence_of("head", [1, 2, 3], 24)
    desk.engine.add(head)
    desk.engine.add(sequence_of("landing", range(14), 2, source=PEER))
    desk.run(lambda: head.num_pauses == 1)
    for _ in range(20):
        desk.engine.run_once()
    assert not head.block_ids and desk.ended == []
    desk.engine.add(sequence_of("late", [9], 1))  # it would fit, but does not overtake
    for _ in range(3):
        desk.engine.run_once()
    assert "late" not in desk.deltas
    Desk._land(desk, arriving[0])
    desk.run(lambda: len(desk.ended) == 3)
    assert head.num_pauses == 1 and desk.ended[0] == "landing"
    assert desk.tokens("head") == expected_tokens([1, 2, 3], 24)
    desk.assert_idle()


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize("expected_output", [1, 4, 9])
def test_an_endless_stream_of_later_requests_starves_nobody(
    expected_output: int, lands: bool
) -> None:
    """Each of them fits beside a long answer, until that has grown; short ones keep coming."""
    desk = Balance(12, policy="guaranteed_no_evict", expected_output=expected_output)
    longs = [sequence_of(f"long-{n}", [n, 2, 3], 40) for n in range(2)]
    for sequence in longs:
        desk.engine.add(sequence)
    number = 0
    while not {"long-0", "long-1"} <= set(desk.ended) and number < 600:
        source = PEER if lands else None
        desk.engine.add(sequence_of(f"short-{number}", [number % 90] * 5, 6, source=source))
        desk.engine.run_once()
        number += 1
    assert {"long-0", "long-1"} <= set(desk.ended)
    for sequence in longs:
        prompt = sequence.request.prompt_token_ids
        assert desk.tokens(sequence.request.request_id) == expected_tokens(prompt, 40)
        assert sequence.num_pauses <= 4
    desk.run(lambda: len(desk.ended) == 2 + number, limit=9000)
    desk.assert_idle()


@settings(max_examples=80, deadline=None)
@given(
    shapes(9, stop=True),
    st.integers(11, 16),
    st.integers(2, 6),
    st.sampled_from(["guaranteed_no_evict", "static_batch"]),
    st.sampled_from([1, 2, 5, 12, "learned"]),
)
def test_whatever_the_answers_turn_out_to_be_all_of_them_end(
    of: list[Shape], num_blocks: int, slots: int, policy: str, expected_output: str | int
) -> None:
    desk = Balance(num_blocks, slots, policy=policy, expected_output=expected_output)
    for _ in range(40 if expected_output == "learned" else 0):
        desk.engine.scheduler.settings.policy.note_answer(2, 24)
    all_are_answered(desk, of)


@pytest.mark.parametrize("expected_output", [3, "learned"])
def test_nothing_is_decided_in_steps_in_which_promises_hold(expected_output: str | int) -> None:
    desk = Balance(32, policy="guaranteed_no_evict", expected_output=expected_output)
    desk.engine.add(sequence_of("a", [1, 2, 3], 60))
    desk.run(lambda: "a" in desk.deltas)
    policy = desk.engine.scheduler.settings.policy
    decided: list[object] = []
    policy.decide = decided.append  # type: ignore[method-assign, assignment]
    desk.run(lambda: desk.ended == ["a"])
    assert not decided
