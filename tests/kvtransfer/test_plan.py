"""The transfer plan: every byte once, in its place, in few and bounded descriptors."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import TransferError
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.plan import Piece, coalesce, plan_blocks
from segue.kvtransfer.transport import ByteRange

THEIRS = KVLayout(12, 1, 1, 1, 2, "float16", 2)
OURS = replace(THEIRS, num_blocks=9)
SIZE = OURS.block_bytes


def byte_pairs(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [
        (remote.offset + i, local.offset + i)
        for remote, local in pieces
        for i in range(remote.length)
    ]


@given(
    remote=st.lists(st.integers(0, THEIRS.num_blocks - 1), max_size=9),
    local=st.permutations(range(OURS.num_blocks)),
    max_bytes=st.integers(1, 4 * SIZE),
)
def test_every_byte_of_every_block_exactly_once(
    remote: list[int], local: list[int], max_bytes: int
) -> None:
    local = local[: len(remote)]
    pieces = plan_blocks(THEIRS, OURS, remote, local, max_bytes)
    assert byte_pairs(pieces) == [
        (r * SIZE + i, b * SIZE + i)
        for r, b in zip(remote, local, strict=True)
        for i in range(SIZE)
    ]
    assert all(r.length == b.length and 0 < r.length <= max_bytes for r, b in pieces)
    assert pieces == coalesce(pieces, max_bytes)


@given(
    layers=st.integers(1, 7),
    ends=st.sets(st.integers(1, 6)),
    scale_bytes=st.sampled_from([0, 4]),
    local=st.permutations(range(4)),
    max_bytes=st.integers(1, 400),
)
def test_parts_of_layers_tile_every_block_exactly_once(
    layers: int, ends: set[int], scale_bytes: int, local: list[int], max_bytes: int
) -> None:
    """However the layers are split, and none of a part's bytes is another layer's."""
    ours = KVLayout(4, layers, 2, 2, 4, "int8", 1, scale_bytes)
    theirs = replace(ours, num_blocks=9)
    bounds = [0, *sorted(end for end in ends if end < layers), layers]
    read: list[tuple[int, int]] = []
    for first, stop in pairwise(bounds):
        pieces = plan_blocks(
            theirs, ours, [8, 1, 2, 5], local, max_bytes, layers=range(first, stop)
        )
        pairs = byte_pairs(pieces)
        assert all(
            first <= place % ours.block_bytes // ours.layer_bytes < stop
            for pair in pairs
            for place in pair
        )
        read += pairs
    assert sorted(read) == sorted(byte_pairs(plan_blocks(theirs, ours, [8, 1, 2, 5], local)))


@pytest.mark.parametrize("layers", [range(0, 4), range(2, 2), range(2, 1), range(-1, 2)])
def test_layers_that_do_not_exist_are_refused(layers: range) -> None:
    three = replace(OURS, num_layers=3)
    with pytest.raises(TransferError, match=r"layers .* are not a part of \[0, 3\)"):
        plan_blocks(three, three, [0], [0], layers=layers)


@given(start=st.integers(0, 3), length=st.integers(1, 6))
def test_a_run_on_both_sides_is_one_descriptor(start: int, length: int) -> None:
    remote = list(range(start, start + length))
    local = list(range(start + 2, start + 2 + length))
    if local[-1] < OURS.num_blocks:
        assert plan_blocks(THEIRS, OURS, remote, local) == [
            (ByteRange(start * SIZE, length * SIZE), ByteRange((start + 2) * SIZE, length * SIZE))
        ]


def test_runs_on_one_side_only_are_not_merged() -> None:
    assert len(plan_blocks(THEIRS, OURS, [0, 1, 2], [2, 1, 0])) == 3
    assert len(plan_blocks(THEIRS, OURS, [2, 1, 0], [0, 1, 2])) == 3


def test_long_runs_are_cut() -> None:
    pieces = plan_blocks(THEIRS, OURS, [0, 1, 2], [0, 1, 2], max_bytes=2 * SIZE)
    assert [remote.length for remote, _ in pieces] == [2 * SIZE, SIZE]


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(TransferError, match="cannot fill"):
        plan_blocks(THEIRS, OURS, [0, 1], [0])
    with pytest.raises(TransferError, match="twice"):
        plan_blocks(THEIRS, OURS, [0, 1], [3, 3])
    with pytest.raises(TransferError, match="outside"):
        plan_blocks(THEIRS, OURS, [12], [0])
    with pytest.raises(TransferError, match="outside"):
        plan_blocks(THEIRS, OURS, [0], [9])
    with pytest.raises(TransferError, match="do not fit"):
        plan_blocks(replace(THEIRS, head_dim=4), OURS, [0], [0])
    with pytest.raises(TransferError, match="cannot fill"):
        coalesce([(ByteRange(0, 2), ByteRange(0, 3))])
    with pytest.raises(TransferError, match="max_bytes"):
        coalesce([], 0)
