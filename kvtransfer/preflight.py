"""The first contact of a pair: read a pattern, check every byte, time it, name the medium."""

from collections import deque
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


class ProbesBusy(TransferError):
    """Too many preflights were under way: this one has not begun, and says nothing of its pair."""


def _promise() -> "Future[ProbeResult]":
    future: Future[ProbeResult] = Future()
    future.set_running_or_notify_cancel()  # a waiter that gives up cannot cancel it
    return future


class Probe:
    """One preflight, moved on by the transfer thread. Over when `advance` says so, not before:
    until then bytes may arrive in its slot, whatever `result` says.
    """

    def __init__(
        self, peer: str, expected: bytes, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        """`timeout_s`: for its reads, from the first one on, and before that for its turn."""
        self.peer = peer
        self.result = _promise()
        self._expected = expected
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadline = clock() + timeout_s
        self._seconds: list[float] = []

    @property
    def has_waited_too_long(self) -> bool:
        return self._clock() >= self._deadline

    def start(self, transport: Transport, area: ProbeArea, slot: int, offset: int) -> None:
        """Post the first read, of the pattern at `offset` of the peer's region, into `slot`.

        Raises TransferError; then nothing was posted.
        """
        self._area = area
        self._local = area.slot(slot, len(self._expected))
        self._remote = ByteRange(offset, len(self._expected))
        self._deadline = self._clock() + self._timeout_s
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

    def reject(self, reason: str, error: type[TransferError] = ProbeFailure) -> None:
        if not self.result.done():
            self.result.set_exception(error(reason))


class Probes:
    """The preflights under way, each with a slot of its own; who finds none free waits for one.

    Used by the transfer thread.
    """

    def __init__(self, transport: Transport, area: ProbeArea | None) -> None:
        """Without an `area` every probe is rejected."""
        self._transport = transport
        self._area = area
        self._by_slot: dict[int, Probe] = {}
        self._waiting: deque[tuple[Probe, int]] = deque()  # with where its pattern is

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
        return bool(self._waiting) or any(
            not probe.result.done() for probe in self._by_slot.values()
        )

    def begin(self, probe: Probe, offset: int) -> None:
        """`offset`: where the pattern is in the peer's region."""
        if self._area is None:
            probe.reject("there is no memory for preflights")
            return
        self._waiting.append((probe, offset))
        self._begin_waiting(self._area)

    def _begin_waiting(self, area: ProbeArea) -> None:
        """All whose turn it is; those whose turn did not come in time are told so."""
        free = [slot for slot in range(NUM_SLOTS) if slot not in self._by_slot]
        while self._waiting and free:
            probe, offset = self._waiting.popleft()
            try:
                probe.start(self._transport, area, free[-1], offset)
                self._by_slot[free.pop()] = probe
            except Exception as error:
                probe.reject(str(error))
        while self._waiting and self._waiting[0][0].has_waited_too_long:
            probe, _ = self._waiting.popleft()
            probe.reject(f"{NUM_SLOTS} other preflights have not ended", ProbesBusy)

    def advance(self) -> None:
        for slot, probe in list(self._by_slot.items()):
            try:
                over = probe.advance(self._transport)
            except Exception as error:  # its slot is kept: bytes may still arrive there
                probe.reject(f"{type(error).__name__}: {error}")
                continue
            if over:
                del self._by_slot[slot]
        if self._waiting and self._area is not None:
            self._begin_waiting(self._area)

    def reject_all(self, reason: str) -> None:
        for probe in (*self._by_slot.values(), *(probe for probe, _ in self._waiting)):
            probe.reject(reason)
        self._by_slot.clear()
        self._waiting.clear()
