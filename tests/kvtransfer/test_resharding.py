"""Unequal tensor-parallel sizes, on bytes: every rank gets its heads, each exactly once."""

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import ConfigurationError, TransferError
from segue.kvtransfer.layout import KVLayout, incompatibility
from segue.kvtransfer.plan import plan_blocks, plan_resharded
from segue.kvtransfer.sharding import ShardedLayout, head_moves

SIZES = (1, 2, 4, 8)
HEADS = (8, 4, 2, 1)
Bytes = npt.NDArray[np.uint8]


def layout(num_heads: int, num_blocks: int = 5, quantised: bool = False) -> KVLayout:
    """Three layers of blocks of four slots, in bytes or in bytes with scales."""
    kind = ("int8", 1, 4) if quantised else ("float16", 2, 0)
    dtype, itemsize, scale_bytes = kind
    return KVLayout(num_blocks, 3, num_heads, 4, 4, dtype, itemsize, scale_bytes)


def planes(whole: KVLayout, block: int) -> Bytes:
    """The reference: an unsharded block, as (layer, k|v, head, bytes), all of it random."""
    shape = (whole.num_layers, 2, whole.num_kv_heads, whole.head_bytes)
    return np.random.default_rng(block).integers(1, 256, shape, dtype=np.uint8)


def memory_of(sharded: ShardedLayout, rank: int) -> Bytes:
    """A rank's whole region, by the definition of the layout and not by its arithmetic."""
    heads = [rank_head for rank_head in sharded.heads_of(rank)]
    blocks = [
        planes(sharded.whole, block)[:, :, heads] for block in range(sharded.whole.num_blocks)
    ]
    region = np.concatenate([block.reshape(-1) for block in blocks])
    assert region.nbytes == sharded.rank_layout.num_bytes
    return region


def check(source: ShardedLayout, target: ShardedLayout, remote: list[int], local: list[int]) -> int:
    """Carry out the plan of every target rank; returns the number of descriptors."""
    regions = [memory_of(source, rank) for rank in range(source.num_ranks)]
    num_descriptors = 0
    for rank in range(target.num_ranks):
        ours = target.rank_layout
        memory = np.zeros(ours.num_bytes, np.uint8)
        writes = np.zeros(ours.num_bytes, np.uint8)
        for source_rank, pieces in plan_resharded(source, target, rank, remote, local).items():
            reads = np.zeros(source.rank_layout.num_bytes, np.uint8)
            num_descriptors += len(pieces)
            for there, here in pieces:
                memory[here.offset : here.end] = regions[source_rank][there.offset : there.end]
                writes[here.offset : here.end] += 1
                reads[there.offset : there.end] += 1
            assert reads.max(initial=0) <= 1, "a byte was read twice"
        expected, touched = np.zeros_like(memory), np.zeros_like(writes)
        for there_block, here_block in zip(remote, local, strict=True):
            place = ours.block_range(here_block)
            whole = planes(source.whole, there_block)
            expected[place.offset : place.end] = whole[:, :, list(target.heads_of(rank))].reshape(
                -1
            )
            touched[place.offset : place.end] = 1
        np.testing.assert_array_equal(memory, expected)
        np.testing.assert_array_equal(writes, touched)
    return num_descriptors


@pytest.mark.parametrize("quantised", [False, True], ids=["plain", "with scales"])
@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("target_ranks", SIZES)
@pytest.mark.parametrize("source_ranks", SIZES)
def test_all_sizes(source_ranks: int, target_ranks: int, num_heads: int, quantised: bool) -> None:
    source = ShardedLayout(layout(num_heads, 5, quantised), source_ranks)
    target = ShardedLayout(layout(num_heads, 7, quantised), target_ranks)
    count = check(source, target, [4, 0, 1], [2, 5, 6])
    # As few as can be: whole blocks if the ranks hold the same heads, else a plane of each source.
    same = source.rank_layout.num_kv_heads == target.rank_layout.num_kv_heads
    sources = max(1, target.rank_layout.num_kv_heads // source.rank_layout.num_kv_heads)
    per_rank = 2 if same else 3 * 2 * 3 * sources  # blocks 0 and 1 go to 5 and 6: one run
    assert count == target_ranks * per_rank


@given(
    source_ranks=st.integers(1, 6),
    target_ranks=st.integers(1, 6),
    num_heads=st.integers(1, 12),
    remote=st.lists(st.integers(0, 4), max_size=5, unique=True),
    local=st.permutations(range(7)),
    quantised=st.booleans(),
)
def test_any_sizes_that_divide(
    source_ranks: int,
    target_ranks: int,
    num_heads: int,
    remote: list[int],
    local: list[int],
    quantised: bool,
) -> None:
    try:
        source = ShardedLayout(layout(num_heads, 5, quantised), source_ranks)
        target = ShardedLayout(layout(num_heads, 7, quantised), target_ranks)
    except ConfigurationError:
        assert any(
            num_heads % ranks and ranks % num_heads for ranks in (source_ranks, target_ranks)
        )
        return
    check(source, target, remote, local[: len(remote)])


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("target_ranks", SIZES)
@pytest.mark.parametrize("source_ranks", SIZES)
def test_copies_of_a_head_share_its_readers(
    source_ranks: int, target_ranks: int, num_heads: int
) -> None:
    source = ShardedLayout(layout(num_heads), source_ranks)
    target = ShardedLayout(layout(num_heads), target_ranks)
    served: Counter[tuple[int, int]] = Counter()  # (head, source rank)
    for rank in range(target_ranks):
        for move in head_moves(source, target, rank):
            first = source.heads_of(move.source_rank).start + move.source_head
            served.update((head, move.source_rank) for head in range(first, first + move.num_heads))
    for head in range(num_heads):
        loads = [served[head, rank] for rank in source.holders_of(head)]
        assert sum(loads) == len(target.holders_of(head)) and max(loads) - min(loads) <= 1


def test_equal_sizes_read_whole_blocks_of_one_rank() -> None:
    for ranks in SIZES:
        both = ShardedLayout(layout(4), ranks)
        for rank in range(ranks):
            plan = plan_resharded(both, both, rank, [1, 2], [3, 4])
            pieces = plan_blocks(both.rank_layout, both.rank_layout, [1, 2], [3, 4])
            assert plan == {rank: pieces} and len(pieces) == 1


@pytest.mark.parametrize(("num_heads", "ranks"), [(3, 2), (3, 4), (3, 8), (6, 4), (4, 3), (2, 7)])
def test_heads_that_cannot_be_spread_are_refused_by_name(num_heads: int, ranks: int) -> None:
    with pytest.raises(ConfigurationError, match=f"num_kv_heads {num_heads}.*_size {ranks}") as got:
        ShardedLayout(layout(num_heads), ranks)
    assert got.value.param == "tensor_parallel_size"
    with pytest.raises(ConfigurationError, match="at least 1"):
        ShardedLayout(layout(num_heads), 0)


def test_ranks_may_differ_and_nothing_else() -> None:
    ours = ShardedLayout(layout(4), 2)
    theirs = ShardedLayout(layout(4, 9), 4)
    assert incompatibility(ours.fingerprint(), theirs.fingerprint()) is None
    for field, value in (
        ("block_size", 8),
        ("num_layers", 4),
        ("head_dim", 8),
        ("num_kv_heads", 8),
    ):
        other = ShardedLayout(replace(layout(4), **{field: value}), 4)  # type: ignore[arg-type]
        with pytest.raises(TransferError, match=f"cannot reshard: {field} is"):
            plan_resharded(other, ours, 0, [0], [0])
    with pytest.raises(TransferError, match="dtype"):
        plan_resharded(ShardedLayout(layout(4, quantised=True), 4), ours, 0, [0], [0])


def test_impossible_plans_are_refused() -> None:
    both = ShardedLayout(layout(4), 2)
    for rank in (-1, 2):
        with pytest.raises(TransferError, match="rank"):
            plan_resharded(both, both, rank, [0], [0])
    with pytest.raises(TransferError, match="cannot fill"):
        plan_resharded(both, both, 0, [0, 1], [0])
    with pytest.raises(TransferError, match="twice"):
        plan_resharded(both, both, 0, [0, 1], [3, 3])
    with pytest.raises(TransferError, match="outside"):
        plan_resharded(both, both, 0, [5], [0])
    with pytest.raises(TransferError, match="head 4"):
        both.holders_of(4)
    assert plan_resharded(both, both, 0, [], []) == {0: []}
