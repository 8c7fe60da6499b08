"""Ranges become the indices of the blocks that they are made up of, or are left alone."""

from hypothesis import given
from hypothesis import strategies as st

from segue.kvtransfer.nixl_descriptors import UnitList
from segue.kvtransfer.transport import ByteRange

UNITS = UnitList(unit_bytes=32, num_units=10, handle=None)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10)), max_size=6))
def test_runs_of_blocks_become_their_indices(runs: list[tuple[int, int]]) -> None:
    indices = UNITS.indices([ByteRange(first * 32, count * 32) for first, count in runs])
    if any(first + count > 10 for first, count in runs):
        assert indices is None
    else:
        assert indices == [i for first, count in runs for i in range(first, first + count)]


@given(offset=st.integers(0, 320), length=st.integers(1, 320))
def test_other_ranges_are_left_alone(offset: int, length: int) -> None:
    whole = offset % 32 == 0 and length % 32 == 0 and offset + length <= 320
    assert (UNITS.indices([ByteRange(0, 32), ByteRange(offset, length)]) is not None) is whole
