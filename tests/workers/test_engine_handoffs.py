"""Contexts that are handed off beside others, with little room: what readers hold stops nobody."""

import pytest
from engine_desk import Desk
from engine_parts import PEER, make_sequence
from engine_traffic import Shape, all_are_answered, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.workers.kvcache.block_pool import BlockState


def test_a_context_of_which_a_reader_holds_a_part_is_not_paused() -> None:
    """One that came to its gateway before, and got its credit later, stands ahead of it. Pausing
    gave nothing back, and neither ever fitted beside what the reader held until the end."""
    desk = Desk(12, chunk=4, ageing=30.0)
    desk.read_rounds = 10
    engine = desk.engine
    engine.add(make_sequence("begun", range(30), 9, decode_peer=PEER, arrived=1.0))
    desk.run(lambda: len(desk.chunks) == 6)
    engine.add(make_sequence("earlier", [90] * 36, 2, decode_peer=PEER, arrived=0.5))
    engine.add(make_sequence("small", [7] * 3, 2, decode_peer=PEER, arrived=9.0))
    desk.run(lambda: len(desk.handed_off) == 3, limit=200)
    assert engine.counters.pauses == 0
    assert desk.handed_off[0] == "begun"
    told = [
        chunk.first_block + at
        for chunk in desk.chunks
        if chunk.sequence.request.request_id == "begun"
        for at in range(len(chunk.block_ids))
    ]
    assert told == list(range(8))
    desk.run(lambda: not engine.cache.pool.num_leased)
    desk.assert_idle()


def test_one_that_has_told_nothing_yet_still_gives_way() -> None:
    desk = Desk(10, chunk=4, ageing=30.0)
    engine = desk.engine
    engine.add(make_sequence("answer", [3] * 8, 24, arrived=0.0))
    desk.run(lambda: len(desk.tokens("answer")) > 2)
    engine.add(make_sequence("late", [5] * 24, 2, decode_peer=PEER, arrived=5.0))
    desk.run(lambda: "answer" in desk.ended and "late" in desk.handed_off)
    desk.run(lambda: not engine.cache.pool.num_leased)
    desk.assert_idle()


@pytest.mark.parametrize("policy", ["max_utilization", "guaranteed_no_evict", "learned"])
@pytest.mark.parametrize("chunking", ["first_come_first_served", "shortest_first"])
@settings(max_examples=80, deadline=None)
@given(
    of=shapes(8, hands_off=True),
    num_blocks=st.integers(11, 16),
    slots=st.integers(2, 5),
    rounds=st.integers(1, 12),
)
def test_there_is_no_state_without_progress(
    policy: str, chunking: str, of: list[Shape], num_blocks: int, slots: int, rounds: int
) -> None:
    """Answers, landings and handoffs of all sizes and places, readers that take their time."""
    learned = policy == "learned"
    desk = Desk(
        num_blocks,
        slots,
        chunk=4,
        policy="guaranteed_no_evict" if learned else policy,
        expected_output=2 if learned else "full",
        ageing=30.0,
        chunking=chunking,
    )
    desk.read_rounds = rounds
    all_are_answered(desk, of)
    desk.run(lambda: not desk.engine.cache.pool.num_leased)
    assert desk.engine.cache.pool.counts()[BlockState.LEASED] == 0
    assert not desk.engine.scheduler.stands_still
