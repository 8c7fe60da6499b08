"""A transport within one process, for tests: real bytes, and faults on demand.

Bytes are copied by the poll that completes a read, not before: a source that reuses its blocks
while a reader is late is really seen to hand over the wrong bytes.
"""

import ctypes
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from segue.cluster.errors import TransferError
from segue.kvtransfer.medium import UNKNOWN_MEDIUM, Medium, MediumKind
from segue.kvtransfer.transport import (
    ByteRange,
    ReadHandle,
    ReadState,
    check_pairs,
    check_ranges,
)

METADATA_KIND = "segue-loopback/1"
ONE_PROCESS = Medium(MediumKind.LOOPBACK, "one process", measured=True)


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to reads from a source; fixed for a read when it is posted."""

    delay_polls: int = 0  # polls that say IN_FLIGHT before the read ends
    delay_seconds: float = 0.0  # on the fabric's clock
    drop: bool = False  # IN_FLIGHT for ever
    fail: bool = False  # FAILED, nothing copied
    corrupt: bool = False  # DONE, but the first byte of each range is inverted


@dataclass(frozen=True, slots=True)
class _Region:
    address: int
    num_bytes: int


class LoopbackFabric:
    """The regions of all loopback transports that can reach each other, and their faults."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.medium = ONE_PROCESS  # what its transports say that they use
        self._lock = threading.Lock()  # transports may live in different threads
        self._regions: dict[str, _Region] = {}
        self._faults: dict[str | None, Faults] = {}

    def set_faults(self, faults: Faults, source: str | None = None) -> None:
        """Apply `faults` to reads posted from now on, from `source` or from all others."""
        self._faults[source] = faults

    def faults_of(self, source: str) -> Faults:
        return self._faults.get(source) or self._faults.get(None) or Faults()

    def add_region(self, name: str, address: int, num_bytes: int) -> None:
        with self._lock:
            if name in self._regions:
                raise TransferError(f"{name} has a region already")
            self._regions[name] = _Region(address, num_bytes)

    def remove_region(self, name: str) -> None:
        """After this returns no byte of the region is read any more."""
        with self._lock:
            self._regions.pop(name, None)

    def region_bytes(self, name: str) -> int | None:
        region = self._regions.get(name)
        return None if region is None else region.num_bytes

    def copy(self, source: str, pairs: list[tuple[ByteRange, int]]) -> bool:
        """Copy ranges of `source` to addresses; False if the source is gone."""
        with self._lock:
            region = self._regions.get(source)
            if region is None:
                return False
            for remote, address in pairs:
                ctypes.memmove(address, region.address + remote.offset, remote.length)
            return True


@dataclass(slots=True)
class _Read:
    peer: str
    source: str  # the peer's name on the fabric
    pairs: list[tuple[ByteRange, int]]
    faults: Faults
    not_before: float
    polls: int = 0
    cancelled: bool = False


class LoopbackTransport:
    name = "loopback"

    def __init__(self, fabric: LoopbackFabric, agent_name: str) -> None:
        self._fabric = fabric
        self._agent_name = agent_name
        self._region: _Region | None = None
        self._peers: dict[str, str] = {}  # peer -> its name on the fabric
        self._reads: dict[ReadHandle, _Read] = {}
        self._next_handle = 0
        self._bytes_read = 0

    def register(self, address: int, num_bytes: int, device: str) -> bytes:
        if device != "cpu":
            raise TransferError(f"the loopback transport cannot reach {device} memory")
        self._fabric.add_region(self._agent_name, address, num_bytes)
        self._region = _Region(address, num_bytes)
        return json.dumps({"kind": METADATA_KIND, "agent_name": self._agent_name}).encode()

    def connect(self, peer: str, metadata: bytes) -> None:
        source = _agent_name(metadata)
        if peer in self._peers:
            raise TransferError(f"{peer} is connected already")
        if self._fabric.region_bytes(source) is None:
            raise TransferError(f"{source} has no region on this fabric")
        self._peers[peer] = source

    def disconnect(self, peer: str) -> None:
        self._peers.pop(peer, None)
        for read in self._reads.values():
            read.cancelled |= read.peer == peer

    def medium(self, peer: str) -> Medium:
        return self._fabric.medium if peer in self._peers else UNKNOWN_MEDIUM

    def post_read(self, peer: str, remote: list[ByteRange], local: list[ByteRange]) -> ReadHandle:
        if self._region is None:
            raise TransferError("no region is registered")
        source = self._peers.get(peer)
        num_bytes = None if source is None else self._fabric.region_bytes(source)
        if source is None or num_bytes is None:
            raise TransferError(f"{peer} is not connected")
        check_pairs(remote, local)
        check_ranges(remote, num_bytes, "remote")
        check_ranges(local, self._region.num_bytes, "local")
        addresses = [self._region.address + part.offset for part in local]
        faults = self._fabric.faults_of(source)
        handle = ReadHandle(self._next_handle)
        self._next_handle += 1
        self._reads[handle] = _Read(
            peer=peer,
            source=source,
            pairs=list(zip(remote, addresses, strict=True)),
            faults=faults,
            not_before=self._fabric.clock() + faults.delay_seconds,
        )
        return handle

    def poll(self, handle: ReadHandle) -> ReadState:
        read = self._reads.get(handle)
        if read is None:
            raise TransferError(f"read {handle} is unknown or spent")
        state = self._advance(read)
        if state is not ReadState.IN_FLIGHT:
            del self._reads[handle]
        if state is ReadState.DONE:
            self._bytes_read += sum(remote.length for remote, _ in read.pairs)
        return state

    def _advance(self, read: _Read) -> ReadState:
        read.polls += 1
        if read.cancelled:
            return ReadState.FAILED
        if (
            read.faults.drop
            or read.polls <= read.faults.delay_polls
            or self._fabric.clock() < read.not_before
        ):
            return ReadState.IN_FLIGHT
        if read.faults.fail or not self._fabric.copy(read.source, read.pairs):
            return ReadState.FAILED
        if read.faults.corrupt:
            for _, address in read.pairs:
                ctypes.c_ubyte.from_address(address).value ^= 0xFF
        return ReadState.DONE

    def progress(self) -> None:
        """Nothing to do: readers copy by themselves."""

    def close(self) -> None:
        if self._region is not None:
            self._fabric.remove_region(self._agent_name)
            self._region = None
        self._peers.clear()
        self._reads.clear()

    @property
    def bytes_read(self) -> int:
        return self._bytes_read


def _agent_name(metadata: bytes) -> str:
    try:
        fields = json.loads(metadata)
        if fields["kind"] == METADATA_KIND and isinstance(fields["agent_name"], str):
            return str(fields["agent_name"])
    except (ValueError, KeyError, TypeError) as error:
        raise TransferError(f"not the metadata of a loopback transport: {error}") from error
    raise TransferError("not the metadata of a loopback transport")
