"""Requests of all shapes that come to an engine over some steps, and what must become of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_desk import Desk
from engine_parts import PEER, expected_tokens, make_sequence
from hypothesis import event
from hypothesis import strategies as st

LAST_ARRIVAL = 12


@dataclass(frozen=True, slots=True)
class Shape:
    """One request. `arrives`: before which step; `arrived`: when it came to its gateway, which
    may be before others that were here first."""

    num_prompt: int
    max_tokens: int
    priority: int
    arrives: int
    lands: bool
    hands_off: bool = False
    arrived: int = 0
    stop: frozenset[int] = frozenset()


def shapes(
    max_size: int, *, stop: bool = False, hands_off: bool = False
) -> st.SearchStrategy[list[Shape]]:
    """Their prompts begin alike, so that they share blocks. `stop`: some end before their limit;
    `hands_off`: of some only the context is computed here, and a reader holds it for a while."""
    stops = st.frozensets(st.integers(0, 96), max_size=12) if stop else st.just(frozenset[int]())
    shape = st.builds(
        Shape,
        num_prompt=st.integers(1, 20),
        max_tokens=st.integers(1, 24),
        priority=st.integers(-1, 1),
        arrives=st.integers(0, LAST_ARRIVAL),
        arrived=st.integers(0, LAST_ARRIVAL) if hands_off else st.just(0),
        lands=st.booleans(),
        hands_off=st.booleans() if hands_off else st.just(False),
        stop=stops,
    )
    return st.lists(shape, min_size=2, max_size=max_size)


def all_are_answered(desk: Desk, of: Sequence[Shape]) -> None:
    """Every answer ends where it should, is what it would be alone, and leaves nothing behind."""
    sequences = [
        make_sequence(
            str(number),
            [(number * 5 + at) % 7 for at in range(shape.num_prompt)],
            shape.max_tokens,
            priority=shape.priority,
            source=PEER if shape.lands and not shape.hands_off else None,
            decode_peer=PEER if shape.hands_off else None,
            arrived=float(shape.arrived),
            stop=shape.stop,
        )
        for number, shape in enumerate(of)
    ]
    for step in range(LAST_ARRIVAL + 1):
        for sequence, shape in zip(sequences, of, strict=True):
            if shape.arrives == step:
                desk.engine.add(sequence)
        desk.engine.run_once()
        desk.let_go()
    desk.run(lambda: len({*desk.ended, *desk.handed_off}) == len(of))
    event(f"pauses: {min(3, desk.engine.counters.pauses)}")
    for sequence in sequences:
        wanted = expected_tokens(sequence.request.prompt_token_ids, sequence.num_produced)
        assert desk.tokens(sequence.request.request_id) == wanted
        if sequence.request.request_id in desk.handed_off:
            assert len(wanted) == 1
            continue
        stopped = wanted[-1] in sequence.request.stop.stop_token_ids
        assert stopped or len(wanted) == sequence.request.stop.max_tokens
    desk.assert_idle()
