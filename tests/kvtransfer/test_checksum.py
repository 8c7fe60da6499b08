"""Block checksums: of the right bytes, of memory as it is now."""

import ctypes

import numpy as np
import pytest
import xxhash

from segue.cluster.errors import TransferError
from segue.kvtransfer.checksum import block_checksums, memory_view
from segue.kvtransfer.layout import KVLayout

LAYOUT = KVLayout(5, 2, 3, 4, 8, "float32", 4)


def test_checksums_are_of_the_blocks_where_they_lie() -> None:
    memory = np.random.default_rng(7).integers(0, 256, LAYOUT.num_bytes, dtype=np.uint8)
    view = memory_view(memory.ctypes.data, memory.nbytes)
    size = LAYOUT.block_bytes
    expected = [
        xxhash.xxh3_64_intdigest(memory[block * size : (block + 1) * size].tobytes())
        for block in (4, 0, 2)
    ]
    assert block_checksums(view, LAYOUT, [4, 0, 2]) == expected
    assert block_checksums(memory.data, LAYOUT, [4, 0, 2]) == expected

    memory[size - 1] ^= 1  # the last byte of block 0: the view sees it, other blocks do not change
    changed = block_checksums(view, LAYOUT, [4, 0, 2])
    assert [a == b for a, b in zip(changed, expected, strict=True)] == [True, False, True]


def test_a_view_writes_through() -> None:
    memory = ctypes.create_string_buffer(8)
    view = memory_view(ctypes.addressof(memory), 8)
    view[3] = 65
    assert memory.raw == b"\0\0\0A\0\0\0\0"


def test_missing_blocks_and_foreign_regions_are_refused() -> None:
    memory = memoryview(bytearray(LAYOUT.num_bytes))
    with pytest.raises(TransferError, match="outside"):
        block_checksums(memory, LAYOUT, [5])
    with pytest.raises(TransferError, match="region"):
        block_checksums(memory[:-1], LAYOUT, [0])
