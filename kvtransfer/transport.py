"""The interface between Segue and whatever moves bytes: six verbs, pull only.

A transport belongs to one worker process and is driven by one thread. It registers one region of
memory (the KV pool), learns of peers by their metadata, and READs byte ranges of a peer's region
into its own. Nobody ever writes into a peer.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NewType, Protocol

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


class Transport(Protocol):
    name: str  # what `segue status` shows, e.g. "nixl/ucx"

    def register(self, address: int, num_bytes: int, device: str) -> bytes:
        """Register the one region; return the metadata peers need. `device`: "cpu" or "cuda:N"."""
        ...

    def connect(self, peer: str, metadata: bytes) -> None:
        """Learn of `peer` (any unique name, here an incarnation). Raises TransferError."""
        ...

    def disconnect(self, peer: str) -> None:
        """Forget `peer`; unknown peers are ignored. Reads from it become FAILED."""
        ...

    def post_read(
        self, peer: str, remote: list[ByteRange], local: list[ByteRange]
    ) -> ReadHandle:
        """Start reading remote[i] into local[i] (equal lengths). Raises TransferError."""
        ...

    def poll(self, handle: ReadHandle) -> ReadState:
        """State of a read. Once terminal, the handle is spent."""
        ...

    def progress(self) -> None:
        """Let peers' reads from our region advance. Call every few milliseconds while any of our
        blocks is leased; not needed otherwise."""
        ...

    def close(self) -> None: ...

    @property
    def bytes_read(self) -> int:
        """Payload bytes of all reads that ended DONE."""
        ...
