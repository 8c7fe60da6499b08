"""Block checksums: of the right bytes, of memory as it is now."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
import xxhash

from segue.cluster.errors import TransferError
from segue.kvtransfer.checksum import COPIED_BLOCKS, device_checksums, host_checksums, memory_view
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
    assert host_checksums(view, LAYOUT)([4, 0, 2]) == expected
    assert host_checksums(memory.data, LAYOUT)([4, 0, 2]) == expected

    memory[size - 1] ^= 1  # the last byte of block 0: the view sees it, other blocks do not change
    changed = host_checksums(view, LAYOUT)([4, 0, 2])
    assert [a == b for a, b in zip(changed, expected, strict=True)] == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_device_sums_up_as_a_host_does(dtype: torch.dtype) -> None:
    """Whichever of the two ends has its KV where: the figures are compared."""
    count, size = 2 * COPIED_BLOCKS + 3, LAYOUT.block_bytes
    memory = torch.randint(0, 255, (count, size), dtype=torch.uint8)
    blocks = memory.view(dtype).view(count, 2, -1)
    layout = replace(LAYOUT, num_blocks=count)
    view = memory_view(memory.data_ptr(), memory.nbytes)
    ids = [*reversed(range(count)), 7, 7]
    assert device_checksums(blocks)(ids) == host_checksums(view, layout)(ids)
    assert device_checksums(blocks)([]) == []


def test_a_view_writes_through() -> None:
    memory = ctypes.create_string_buffer(8)
    view = memory_view(ctypes.addressof(memory), 8)
    view[3] = 65
    assert memory.raw == b"\0\0\0A\0\0\0\0"


def test_missing_blocks_and_foreign_regions_are_refused() -> None:
    memory = memoryview(bytearray(LAYOUT.num_bytes))
    with pytest.raises(TransferError, match="outside"):
        host_checksums(memory, LAYOUT)([5])
    with pytest.raises(TransferError, match="region"):
        host_checksums(memory[:-1], LAYOUT)
