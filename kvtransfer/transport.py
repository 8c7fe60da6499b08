"""The interface between Segue and whatever moves bytes: few verbs, pull only.

A transport belongs to one worker process and is driven by one thread. It registers one region of
memory (the KV pool), learns of peers by their metadata, and READs byte ranges of a peer's region
into its own. Nobody ever writes into a peer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NewType, Protocol

from segue.cluster.errors import TransferError
from segue.kvtransfer.medium import Medium

ReadHandle = NewType("ReadHandle", int)


class ReadState(Enum):
    IN_FLIGHT = auto()
    DONE = auto()
    FAILED = auto()  # terminal: no byte will be written into our memory any more


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes at `offset` of a registered region."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def check_ranges(ranges: Sequence[ByteRange], num_bytes: int, whose: str) -> None:
    """Raise TransferError unless each range is a non-empty part of a region of `num_bytes`."""
    for part in ranges:
        if part.offset < 0 or part.length < 1 or part.end > num_bytes:
            raise TransferError(
                f"bytes [{part.offset}, {part.end}) are not a part of the {whose} region "
                f"of {num_bytes} bytes"
            )


def check_pairs(remote: Sequence[ByteRange], local: Sequence[ByteRange]) -> None:
    """Raise TransferError unless remote[i] and local[i] exist in pairs of equal length."""
    if not remote or len(remote) != len(local):
        raise TransferError(f"{len(remote)} remote ranges cannot fill {len(local)} local ones")
    for source, target in zip(remote, local, strict=True):
        if source.length != target.length:
            raise TransferError(f"{source.length} bytes cannot fill {target.length}")


class Transport(Protocol):
    name: str  # what `segue status` shows, e.g. "nixl/ucx"

    def register(self, address: int, num_bytes: int, device: str) -> bytes:
        """Register the one region; return the metadata peers need. `device`: "cpu" or "cuda:N"."""
        ...

    def connect(self, peer: str, metadata: bytes) -> None:
        """Learn of `peer` (any unique name, here an incarnation). Raises TransferError."""
        ...

    def disconnect(self, peer: str) -> None:
        """Forget `peer`; unknown peers are ignored. Reads from it become FAILED, each one once it
        is certain that nothing will be written any more; until then poll says IN_FLIGHT and the
        caller keeps the blocks it was landing in out of use."""
        ...

    def medium(self, peer: str) -> Medium:
        """What carries reads from `peer`; known for sure only after the first of them."""
        ...

    def post_read(self, peer: str, remote: list[ByteRange], local: list[ByteRange]) -> ReadHandle:
        """Start reading remote[i] into local[i] (equal lengths). Raises TransferError."""
        ...

    def poll(self, handle: ReadHandle) -> ReadState:
        """State of a read. Once terminal, the handle is spent. Raises TransferError if unknown."""
        ...

    def progress(self) -> None:
        """Let peers' reads from our region advance. Call every few milliseconds while any of our
        blocks is leased, and about once a second otherwise: a reader that outlived its lease
        gets its blocks back only when its read ends."""
        ...

    def close(self) -> None: ...

    @property
    def bytes_read(self) -> int:
        """Payload bytes of all reads that ended DONE."""
        ...
