"""The memory of preflights: a pattern that peers read, and slots to read theirs into.

It lies behind the KV blocks in the one registered region, so a preflight goes the way of the
blocks and cannot touch one:

    | block 0 ... block n-1 | pattern | slot 0 | slot 1 | ...      each of probe_bytes

The pattern is written once, before anybody knows of the region.
"""

import hashlib

import torch

from segue.cluster.errors import ConfigurationError
from segue.kvtransfer.transport import ByteRange

NUM_SLOTS = 4  # preflights at once; one that hangs keeps its slot until its read has ended
PAGE_BYTES = 4096


def area_bytes(probe_bytes: int) -> int:
    return (1 + NUM_SLOTS) * probe_bytes


def pattern(incarnation: str, num_bytes: int) -> bytes:
    """Bytes that name their owner and their place; a shorter pattern begins a longer one."""
    salt = hashlib.shake_128(incarnation.encode()).digest(PAGE_BYTES - 8)
    num_pages = -(-num_bytes // PAGE_BYTES)
    pages = b"".join(page.to_bytes(8, "little") + salt for page in range(num_pages))
    return pages[:num_bytes]


class ProbeArea:
    """`memory`: bytes on any device, at `offset` of the region. Used by the transfer thread."""

    def __init__(self, memory: torch.Tensor, offset: int, incarnation: str) -> None:
        if memory.dtype != torch.uint8 or memory.dim() != 1 or memory.numel() % (1 + NUM_SLOTS):
            raise ConfigurationError(
                f"a probe area is {1 + NUM_SLOTS} equal parts of bytes, "
                f"not {memory.numel()} of {memory.dtype}"
            )
        self._memory = memory
        self._offset = offset
        self.probe_bytes = memory.numel() // (1 + NUM_SLOTS)
        shown = bytearray(pattern(incarnation, self.probe_bytes))
        memory[: self.probe_bytes].copy_(torch.frombuffer(shown, dtype=torch.uint8))
        memory[self.probe_bytes :].zero_()
        self._wait_for_device()

    def slot(self, number: int, num_bytes: int) -> ByteRange:
        """Where in the region the first `num_bytes` of a slot are."""
        if not (0 <= number < NUM_SLOTS and 0 < num_bytes <= self.probe_bytes):
            raise ValueError(f"no slot {number} of {num_bytes} bytes")
        return ByteRange(self._offset + (1 + number) * self.probe_bytes, num_bytes)

    def clear(self, place: ByteRange) -> None:
        """What was read there before must not pass for what will be."""
        self._bytes_at(place).zero_()
        self._wait_for_device()

    def load(self, place: ByteRange) -> bytes:
        return self._bytes_at(place).cpu().numpy().tobytes()

    def _bytes_at(self, place: ByteRange) -> torch.Tensor:
        start = place.offset - self._offset
        return self._memory[start : start + place.length]

    def _wait_for_device(self) -> None:
        self._memory[:1].cpu()  # the transport does not wait for what the device has queued
