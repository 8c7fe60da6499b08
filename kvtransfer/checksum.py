"""Checksums of KV blocks: XXH3, 64 bits, the same wherever the bytes lie.

They detect a block that was reused or damaged between announcing and reading it; they are no
protection against malice.
"""

import ctypes
from collections.abc import Callable, Sequence

import torch
import xxhash

from segue.cluster.errors import TransferError
from segue.kvtransfer.layout import KVLayout

COPIED_BLOCKS = 64  # at once from a device

BlockChecksums = Callable[[Sequence[int]], Sequence[int]]  # one a block


def memory_view(address: int, num_bytes: int) -> memoryview:
    """See `num_bytes` at `address` as bytes. The caller keeps the memory alive."""
    return memoryview((ctypes.c_ubyte * num_bytes).from_address(address)).cast("B")


def host_checksums(region: memoryview, layout: KVLayout) -> BlockChecksums:
    """Of KV memory on the host; `region` is all of it as bytes."""
    if region.nbytes != layout.num_bytes:
        raise TransferError(f"a region of {region.nbytes} bytes is not one of {layout.num_bytes}")
    size = layout.block_bytes

    def checksums(block_ids: Sequence[int]) -> list[int]:
        starts = [layout.offset(block_id) for block_id in block_ids]
        return [xxhash.xxh3_64_intdigest(region[start : start + size]) for start in starts]

    return checksums


def device_checksums(blocks: torch.Tensor) -> BlockChecksums:
    """Of KV memory on a device, `blocks` (num_blocks, ...): the same sums as on a host.

    The blocks are copied to the host first, some at a time, and summed up by one core. What that
    costs beside a prefill has not been measured on a GPU, so it is not the default there.
    """

    def checksums(block_ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        for start in range(0, len(block_ids), COPIED_BLOCKS):
            ids = torch.tensor(block_ids[start : start + COPIED_BLOCKS], device=blocks.device)
            copied = blocks[ids].contiguous().cpu().view(torch.uint8)
            rows = copied.reshape(len(ids), -1).numpy()
            found += [xxhash.xxh3_64_intdigest(row.data) for row in rows]
        return found

    return checksums
