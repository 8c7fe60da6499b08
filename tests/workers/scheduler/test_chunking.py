"""How contexts share a step: the reference scenarios, and what must hold for all others."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.workers.scheduler.chunking import (
    CHUNKING,
    ChunkingPolicy,
    Remainder,
    drafts_kept,
    equal_progress,
    first_come_first_served,
    force_chunk,
)
from segue.workers.scheduler.microbatch import StepBudget

FCFS = ChunkingPolicy.FIRST_COME_FIRST_SERVED
EQUAL = ChunkingPolicy.EQUAL_PROGRESS
FORCE = ChunkingPolicy.FORCE_CHUNK
UNLIMITED = 10**6


def positions(
    policy: ChunkingPolicy,
    prompts: list[int],
    unit: int,
    capacity: int = UNLIMITED,
    limit: int | None = None,
) -> list[tuple[int, ...]]:
    """How far each prompt is after each step, as long as something moves."""
    at = [0] * len(prompts)
    steps: list[tuple[int, ...]] = []
    while at != prompts:
        remainders = [Remainder(start, end) for start, end in zip(at, prompts, strict=True)]
        sizes = CHUNKING[policy](remainders, unit, capacity, limit)
        if not any(sizes):
            break
        at = [start + size for start, size in zip(at, sizes, strict=True)]
        steps.append(tuple(at))
    return steps


@pytest.mark.parametrize(
    ("policy", "prompts", "unit", "capacity", "limit", "expected"),
    [
        (FCFS, [25, 25], 20, UNLIMITED, None, [(25, 25)]),
        (FCFS, [25, 25], 100, UNLIMITED, 20, []),
        (EQUAL, [25, 25], 100, UNLIMITED, 20, []),
        (FCFS, [10, 25], 10, UNLIMITED, 20, [(10, 20), (10, 25)]),
        (FCFS, [25, 25], 20, 20, None, [(20, 0), (25, 0), (25, 20), (25, 25)]),
        (EQUAL, [25, 25], 20, 20, None, [(20, 0), (25, 0), (25, 20), (25, 25)]),
        (FCFS, [25, 25], 20, 10, None, []),
        (EQUAL, [25, 25], 20, 10, None, []),
        (EQUAL, [25, 25], 5, 30, None, [(15, 15), (25, 25)]),
        (FCFS, [25, 25], 5, 30, None, [(25, 5), (25, 25)]),
        (FCFS, [25, 15], 5, 30, 10, [(10, 10), (20, 15), (25, 15)]),
        (EQUAL, [25, 15], 5, 30, 10, [(10, 10), (20, 15), (25, 15)]),
        (EQUAL, [25, 25], 5, 15, None, [(10, 5), (20, 10), (25, 20), (25, 25)]),
        (FCFS, [25, 25], 5, 15, None, [(15, 0), (25, 5), (25, 20), (25, 25)]),
        (FORCE, [25, 25], 10, 15, None, [(10, 0), (20, 0), (25, 10), (25, 20), (25, 25)]),
        (FORCE, [30], 10, 100, None, [(10,), (20,), (30,)]),
        (FORCE, [30], 10, 14, None, [(10,), (20,), (30,)]),  # 15, one of them for a generation
    ],
)
def test_reference_positions(
    policy: ChunkingPolicy,
    prompts: list[int],
    unit: int,
    capacity: int,
    limit: int | None,
    expected: list[tuple[int, ...]],
) -> None:
    assert positions(policy, prompts, unit, capacity, limit) == expected


@pytest.mark.parametrize(
    ("policy", "prompts", "drafts", "unit", "capacity", "limit", "expected", "left"),
    [
        (EQUAL, [27, 27], 5, 5, 30, None, [(15, 15), (27, 27)], {0: 3, 1: 3}),
        (FCFS, [27, 27], 5, 5, 30, None, [(27, 0), (27, 27)], {0: 3, 1: 3}),
        (EQUAL, [23, 17], 5, 5, 20, None, [(10, 10), (23, 17)], {0: 0, 1: 0}),
        (FCFS, [6, 6], 5, 5, 30, 10, [(6, 6)], {0: 4, 1: 4}),
        (FCFS, [25, 25], 5, 10, 30, None, [(25, 0), (25, 25)], {0: 5, 1: 5}),
        (FCFS, [25, 25], 5, 5, 50, None, [(25, 25)], {0: 0, 1: 0}),
        (FCFS, [4128], 3, 64, UNLIMITED, 4128, [(4128,)], {0: 0}),
        (FCFS, [4127], 3, 64, UNLIMITED, 4128, [(4127,)], {0: 1}),
        (FCFS, [4125], 3, 64, UNLIMITED, 4128, [(4125,)], {0: 3}),
    ],
)
def test_reference_drafts(
    policy: ChunkingPolicy,
    prompts: list[int],
    drafts: int,
    unit: int,
    capacity: int,
    limit: int | None,
    expected: list[tuple[int, ...]],
    left: dict[int, int],
) -> None:
    at = [0] * len(prompts)
    kept: dict[int, int] = {}
    steps: list[tuple[int, ...]] = []
    while at != prompts:
        live = [index for index, start in enumerate(at) if start < prompts[index]]
        remainders = [Remainder(at[index], prompts[index], drafts) for index in live]
        sizes = CHUNKING[policy](remainders, unit, capacity, limit)
        for index, size, keeps in zip(
            live, sizes, drafts_kept(remainders, sizes, unit, capacity, limit), strict=True
        ):
            at[index] += size
            if size and at[index] == prompts[index]:
                kept[index] = keeps
        steps.append(tuple(at))
    assert (steps, kept) == (expected, left)


def test_a_reused_prefix_takes_nothing_of_the_budget() -> None:
    """Prompts of 20 with 15 reused, then of 15 with 10 reused: only what is computed counts."""
    three = [Remainder(15, 20)] * 3
    assert first_come_first_served(three, 1, 7, None) == [5, 2, 0]
    two = [Remainder(10, 15)] * 2
    assert equal_progress(two, 1, 3, None) == [2, 1]


def test_a_chunk_behind_a_prefix_hit_ends_on_a_boundary() -> None:
    assert first_come_first_served([Remainder(15, 100)], 10, 30, None) == [25]
    assert equal_progress([Remainder(15, 100)], 10, 30, None) == [25]
    assert force_chunk([Remainder(15, 100)], 10, 30, None) == [5]


def test_forced_chunks_larger_than_the_limit_are_an_error() -> None:
    with pytest.raises(ValueError, match="larger than the limit"):
        force_chunk([Remainder(0, 30)], 10, 100, 9)


def test_a_unit_that_never_fits_is_refused_when_configured() -> None:
    with pytest.raises(ValueError, match="a chunk unit of 20 tokens never fits a chunk of 10"):
        StepBudget(100, 10, 10, FCFS, chunk_unit=20)
    with pytest.raises(ValueError, match="block_size <= chunk_size <= max_num_batched_tokens"):
        StepBudget(max_num_batched_tokens=8, chunk_size=16, block_size=4)
    with pytest.raises(ValueError, match="multiple of block_size"):
        StepBudget(100, 50, 10, FCFS, chunk_unit=15)


contexts = st.lists(
    st.builds(lambda start, more: Remainder(start, start + more), *[st.integers(0, 60)] * 2).filter(
        lambda r: r.size > 0
    ),
    max_size=8,
)


@given(
    st.sampled_from(list(ChunkingPolicy)),
    contexts,
    st.integers(1, 20),
    st.integers(0, 100),
    st.integers(20, 60),
)
def test_shares_never_exceed_anything_and_end_on_boundaries(
    policy: ChunkingPolicy, remainders: list[Remainder], unit: int, capacity: int, limit: int
) -> None:
    sizes = CHUNKING[policy](remainders, unit, capacity, limit)
    assert sum(sizes) <= capacity
    for remainder, size in zip(remainders, sizes, strict=True):
        assert 0 <= size <= min(remainder.size, limit)
        if policy is ChunkingPolicy.SHORTEST_FIRST and capacity < 2 * unit:
            continue  # halves that hold no unit are cut anywhere
        assert size == remainder.size or not size or (remainder.start + size) % unit == 0
    if policy is ChunkingPolicy.NO_CHUNKING:
        wanted = (r.size if r.size <= limit else capacity + 1 for r in remainders)
        fitting = sum(total <= capacity for total in itertools.accumulate(wanted))
        assert sizes == [r.size if n < fitting else 0 for n, r in enumerate(remainders)]
    elif remainders and capacity >= unit:
        assert any(sizes)


@given(contexts, st.integers(1, 10), st.integers(0, 100))
def test_equal_progress_is_equal(remainders: list[Remainder], unit: int, capacity: int) -> None:
    """Nobody who wants more is left two units behind: a round's rest may fit only a short end."""
    aligned = [Remainder(r.start // unit * unit, r.end) for r in remainders if r.size]
    sizes = equal_progress(aligned, unit, capacity, None)
    for remainder, size in zip(aligned, sizes, strict=True):
        if size < remainder.size:
            assert max(sizes) <= size + 2 * unit
