"""Checksums of KV blocks, computed where the bytes lie: XXH3, 64 bits, no copies.

They detect a block that was reused or damaged between announcing and reading it; they are no
protection against malice.
"""

import ctypes
from collections.abc import Iterable

import xxhash

from segue.cluster.errors import TransferError
from segue.kvtransfer.layout import KVLayout


def memory_view(address: int, num_bytes: int) -> memoryview:
    """See `num_bytes` at `address` as bytes. The caller keeps the memory alive."""
    return memoryview((ctypes.c_ubyte * num_bytes).from_address(address)).cast("B")


def block_checksums(region: memoryview, layout: KVLayout, block_ids: Iterable[int]) -> list[int]:
    """Checksum each of `block_ids`; `region` is the whole KV memory as bytes."""
    if region.nbytes != layout.num_bytes:
        raise TransferError(f"a region of {region.nbytes} bytes is not one of {layout.num_bytes}")
    size = layout.block_bytes
    starts = [layout.offset(block_id) for block_id in block_ids]
    return [xxhash.xxh3_64_intdigest(region[start : start + size]) for start in starts]
