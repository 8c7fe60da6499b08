"""The first contact of a pair: read a pattern, check every byte, time it, name the medium."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from segue.cluster.errors import TransferError
from segue.kvtransfer.medium import Medium
from segue.kvtransfer.probe_area import NUM_SLOTS, ProbeArea
from segue.kvtransfer.transport import ByteRange, ReadState, Transport

TIMED_READS = 3  # after the one that makes the connection; the fastest counts
HURRY_SECONDS = 0.05  # how long a read is polled without a pause, so that it is timed well


@dataclass(frozen=True, slots=True)
class ProbeResult:
    medium: Medium
    num_bytes: int
    seconds: float  # of the fastest read

    @property
    def gigabytes_per_second(self) -> float:
        return self.num_bytes / max(self.seconds, 1e-9) / 1e9


class ProbeFailure(TransferError):
    """The pair cannot be trusted with KV."""


def _promise() -> "Future[ProbeResult]":
    future: Future[ProbeResult] = Future()
    future.set_running_or_notify_cancel()  # a waiter that gives up cannot cancel it
    return future


class Probe:
    """One preflight, moved on by the transfer thread. Over when `advance` says so, not before:
    until then bytes may arrive in its slot, whatever `result` says.
    """

    def __init__(
        self, peer: str, expected: bytes, deadline: float, clock: Callable[[], float]
    ) -> None:
        self.peer = peer
        self.result = _promise()
        self._expected = expected
        self._deadline = deadline
        self._clock = clock
        self._seconds: list[float] = []

    def start(self, transport: Transport, area: ProbeArea, slot: int, offset: int) -> None:
        """Post the first read, of the pattern at `offset` of the peer's region, into `slot`.

        Raises TransferError; then nothing was posted.
        """
        self._area = area
        self._local = area.slot(slot, len(self._expected))
        self._remote = ByteRange(offset, len(self._expected))
        self._post(transport)

    def _post(self, transport: Transport) -> None:
        self._area.clear(self._local)
        self._began = self._clock()
        self._handle = transport.post_read(self.peer, [self._remote], [self._local])

    def advance(self, transport: Transport) -> bool:
        """True once no byte can arrive any more; then `result` is there."""
        state = transport.poll(self._handle)
        now = self._clock()
        if state is ReadState.IN_FLIGHT:
            if now >= self._deadline:
                self.reject("the pattern did not arrive in time")
            return False
        if state is ReadState.FAILED:
            self.reject("the read of the pattern failed")
            return True
        self._seconds.append(now - self._began)
        return self.result.done() or self._judge(transport)

    def _judge(self, transport: Transport) -> bool:
        """A read has ended well. True: it was the last one."""
        if self._area.load(self._local) != self._expected:
            self.reject("the bytes that arrived are not those of the pattern")
        elif len(self._seconds) > TIMED_READS:
            medium = transport.medium(self.peer)
            fastest = min(self._seconds[1:])
            self.result.set_result(ProbeResult(medium, self._local.length, fastest))
        else:
            try:
                self._post(transport)
            except TransferError as error:
                self.reject(str(error))
        return self.result.done()

    @property
    def is_hurried(self) -> bool:
        return not self.result.done() and self._clock() - self._began < HURRY_SECONDS

    def reject(self, reason: str) -> None:
        if not self.result.done():
            self.result.set_exception(ProbeFailure(reason))


class Probes:
    """The preflights under way, each with a slot of its own. Used by the transfer thread."""

    def __init__(self, transport: Transport, area: ProbeArea | None) -> None:
        """Without an `area` every probe is rejected."""
        self._transport = transport
        self._area = area
        self._by_slot: dict[int, Probe] = {}

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def probe_bytes(self) -> int:
        """The length of our own pattern."""
        return 0 if self._area is None else self._area.probe_bytes

    @property
    def are_hurried(self) -> bool:
        return any(probe.is_hurried for probe in self._by_slot.values())

    @property
    def are_awaited(self) -> bool:
        return any(not probe.result.done() for probe in self._by_slot.values())

    def begin(self, probe: Probe, offset: int) -> None:
        """`offset`: where the pattern is in the peer's region."""
        free = next((slot for slot in range(NUM_SLOTS) if slot not in self._by_slot), None)
        if self._area is None:
            probe.reject("there is no memory for preflights")
        elif free is None:
            probe.reject(f"{NUM_SLOTS} other preflights have not ended")
        else:
            try:
                probe.start(self._transport, self._area, free, offset)
                self._by_slot[free] = probe
            except Exception as error:
                probe.reject(str(error))

    def advance(self) -> None:
        for slot, probe in list(self._by_slot.items()):
            try:
                over = probe.advance(self._transport)
            except Exception as error:  # its slot is kept: bytes may still arrive there
                probe.reject(f"{type(error).__name__}: {error}")
                continue
            if over:
                del self._by_slot[slot]

    def reject_all(self, reason: str) -> None:
        for probe in self._by_slot.values():
            probe.reject(reason)
        self._by_slot.clear()
