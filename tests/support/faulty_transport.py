"""A transport around another one that delays, stalls, fails or corrupts reads on demand."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

from fault_plan import FaultPlan

from segue.kvtransfer.medium import Medium
from segue.kvtransfer.transport import ByteRange, ReadHandle, ReadState, Transport


@dataclass(slots=True)
class _Read:
    peer: str
    remote: list[ByteRange]
    local: list[ByteRange]
    began: float
    inner: ReadHandle | None = None  # None: not posted yet, so that it will read late
    ended: ReadState | None = None


class FaultyTransport:
    """`plan` is asked at every step of a read, so a fault may begin and end while it is going on.

    A read that is posted into a stall touches the source's memory only when the stall ends.
    """

    def __init__(
        self,
        inner: Transport,
        plan: Callable[[], FaultPlan],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = inner.name
        self._inner = inner
        self._plan = plan
        self._clock = clock
        self._address = 0
        self._reads: dict[ReadHandle, _Read] = {}
        self._next_handle = 0

    def register(self, address: int, num_bytes: int, device: str) -> bytes:
        self._address = address
        return self._inner.register(address, num_bytes, device)

    def connect(self, peer: str, metadata: bytes) -> None:
        self._inner.connect(peer, metadata)

    def disconnect(self, peer: str) -> None:
        for read in self._reads.values():
            if read.peer == peer and read.inner is None:
                read.ended = ReadState.FAILED  # nothing was ever posted
        self._inner.disconnect(peer)

    def medium(self, peer: str) -> Medium:
        return self._inner.medium(peer)

    def post_read(self, peer: str, remote: list[ByteRange], local: list[ByteRange]) -> ReadHandle:
        read = _Read(peer, remote, local, self._clock())
        if not self._is_late(read):
            read.inner = self._inner.post_read(peer, remote, local)
        handle = ReadHandle(self._next_handle)
        self._next_handle += 1
        self._reads[handle] = read
        return handle

    def poll(self, handle: ReadHandle) -> ReadState:
        read = self._reads[handle]
        state = read.ended or self._advance(read)
        if state is not ReadState.IN_FLIGHT:
            del self._reads[handle]
        return state

    def _advance(self, read: _Read) -> ReadState:
        if self._is_late(read):
            return ReadState.IN_FLIGHT
        if read.inner is None:
            read.inner = self._inner.post_read(read.peer, read.remote, read.local)
        state = self._inner.poll(read.inner)
        if state is not ReadState.DONE:
            return state
        fault = self._plan().reads
        if fault == "corrupt":
            for part in read.local:
                ctypes.c_ubyte.from_address(self._address + part.offset).value ^= 0xFF
        return ReadState.FAILED if fault == "fail" else ReadState.DONE

    def _is_late(self, read: _Read) -> bool:
        plan = self._plan()
        return plan.reads == "stall" or self._clock() < read.began + plan.read_delay_s

    def progress(self) -> None:
        if self._plan().serves_readers:
            self._inner.progress()

    def close(self) -> None:
        self._reads.clear()
        self._inner.close()

    @property
    def bytes_read(self) -> int:
        return self._inner.bytes_read
