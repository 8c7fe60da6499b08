"""The one thread that drives a worker's transport: reads blocks, verifies them, serves readers.

A read has two ends. `verified` resolves when the bytes are here and match their checksums, or
fails with the reason, a timeout included. `terminal` resolves when no byte can arrive any more;
only then may the target blocks be freed. Idle, the thread wakes once a second, for peers that
read without a lease or knock for the first time.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from segue.cluster.errors import TransferError
from segue.cluster.thread_pulse import ThreadPulse
from segue.kvtransfer.checksum import BlockChecksums
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.plan import plan_blocks
from segue.kvtransfer.preflight import Probe, Probes
from segue.kvtransfer.probe_area import ProbeArea
from segue.kvtransfer.transport import ReadHandle, ReadState, Transport

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.001
# A block on the same machine takes a tenth of POLL_SECONDS: a young read is looked at more often.
YOUNG_POLL_SECONDS = 0.0001
YOUNG_SECONDS = 0.005
STUCK_POLL_SECONDS = 0.05  # for reads that have timed out: their end is awaited, not hurried
IDLE_SECONDS = 1.0
MAX_READS_AT_ONCE = 2048  # less than what transports refuse; others wait for their turn


def _promise() -> Future[None]:
    """A future that only the transfer thread resolves: a waiter that gives up cannot cancel it."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True, eq=False)
class BlockRead:
    peer: str
    remote_blocks: tuple[int, ...]
    local_blocks: tuple[int, ...]
    checksums: tuple[int, ...]
    deadline: float
    layers: range | None  # None: all, whole blocks
    num_bytes: int
    verified: Future[None] = field(default_factory=_promise)
    terminal: Future[None] = field(default_factory=_promise)
    handle: ReadHandle | None = None


class Receiver:
    def __init__(
        self,
        transport: Transport,
        layout: KVLayout,
        checksums: BlockChecksums,
        clock: Callable[[], float] = time.monotonic,
        area: ProbeArea | None = None,
    ) -> None:
        """`checksums` are those of our own blocks. Without an `area` no peer can be probed."""
        self.transport = transport
        self.layout = layout
        self._checksums = checksums
        self._clock = clock
        self.num_corrupt_blocks = 0  # which arrived with other bytes than were announced
        self._peers: dict[str, KVLayout] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._reads: list[BlockRead] = []
        self._unposted: deque[BlockRead] = deque()  # as many are under way as may be
        self._probes = Probes(transport, area)
        self.num_abandoned = 0  # reads whose end nobody will know: their blocks stay quarantined
        self.kv_bytes_read = 0  # of reads that ended well; what probes read is no KV
        self._serving = False
        self._attentive_until = self._posted_at = -math.inf
        self._stopping = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="transfer", daemon=True)
        self.pulse = ThreadPulse(self._thread, clock)

    # -- from other threads ------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    def connect(self, peer: str, metadata: bytes, num_blocks: int) -> Future[None]:
        """Learn of a peer whose layout equals ours but for its number of blocks."""
        done = _promise()

        def work() -> None:
            try:
                if peer not in self._peers:
                    self.transport.connect(peer, metadata)
                    self._peers[peer] = replace(self.layout, num_blocks=num_blocks)
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self._post(work)
        return done

    def disconnect(self, peer: str) -> None:
        self._post(lambda: self._forget(peer))

    def is_connected(self, peer: str) -> bool:
        """False also after a read from `peer` failed: connect again."""
        return peer in self._peers

    def read(
        self,
        peer: str,
        remote_blocks: tuple[int, ...],
        local_blocks: tuple[int, ...],
        checksums: tuple[int, ...],
        timeout_s: float,
        layers: range | None = None,
    ) -> BlockRead:
        """Start reading blocks, or these layers of them; empty `checksums` skips the verification.

        A checksum is that of a whole block: what is not read now must have arrived before. If that
        is all of it, nothing is read and the checksums are verified.
        """
        num_layers = self.layout.num_layers if layers is None else len(layers)
        num_bytes = len(local_blocks) * num_layers * self.layout.layer_bytes
        deadline = self._clock() + timeout_s
        read = BlockRead(peer, remote_blocks, local_blocks, checksums, deadline, layers, num_bytes)
        self._post(lambda: self._begin(read))
        return read

    def probe(self, peer: str, expected: bytes, timeout_s: float) -> Probe:
        """Read the pattern of a connected peer and compare it with `expected`, its beginning.

        It waits for its turn for `timeout_s`, and may then take as long."""
        probe = Probe(peer, expected, timeout_s, self._clock)
        self._post(lambda: self._begin_probe(probe))
        return probe

    def attend(self, seconds: float) -> None:
        """A peer is about to read for the first time: be quick to answer it for a while."""
        with self._wake:
            self._attentive_until = max(self._attentive_until, self._clock() + seconds)
            self._wake.notify()

    def serve(self, serving: bool) -> None:
        """Whether peers may be reading from us: then the transport is kept in motion."""
        with self._wake:
            self._serving = serving
            self._wake.notify()

    @property
    def num_in_flight(self) -> int:
        return len(self._reads)

    @property
    def num_overdue(self) -> int:
        """Reads given up whose end is still awaited: their target blocks are in quarantine."""
        return self.num_abandoned + sum(read.verified.done() for read in self._reads.copy())

    @property
    def probe_bytes(self) -> int:
        return self._probes.probe_bytes

    def _post(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._queue.append(work)
            self._wake.notify()

    # -- in the transfer thread --------------------------------------------------------------

    def _run(self) -> None:
        with self.pulse:
            while self._round():
                pass
        self._fail_all(self.pulse.fault or "the worker stops")
        self.transport.close()

    def _round(self) -> bool:
        with self._wake:
            if not self._queue and not self._stopping:
                self.pulse.rest()
                self._wake.wait(self._pause())
            if self._stopping:
                return False
            self.pulse.begin()
            work = list(self._queue)
            self._queue.clear()
        for item in work:
            try:
                item()
            except Exception:  # of `_forget`; the other kinds of work tell their caller
                logger.exception("the transfer thread could not do what it was asked")
        try:
            self._advance()
        except Exception:  # the transport itself broke: no read can be trusted
            logger.exception("the transport failed")
            self._fail_all("the transport failed")
        return True

    def _pause(self) -> float:
        waits = any(not read.verified.done() for read in self._reads)
        if self._probes.are_hurried:
            return 0.0
        if waits and self._clock() - self._posted_at < YOUNG_SECONDS:
            return YOUNG_POLL_SECONDS
        if (
            self._serving
            or waits
            or self._probes.are_awaited
            or self._clock() < self._attentive_until
        ):
            return POLL_SECONDS
        return STUCK_POLL_SECONDS if self._reads or self._probes else IDLE_SECONDS

    def _forget(self, peer: str) -> None:
        if self._peers.pop(peer, None) is not None:
            self.transport.disconnect(peer)

    def _begin(self, read: BlockRead) -> None:
        layers, num_layers = read.layers, self.layout.num_layers
        if layers is not None and layers.start == layers.stop == num_layers:
            self._conclude(read, ReadState.DONE)
        elif self._unposted or len(self._reads) >= MAX_READS_AT_ONCE:
            self._unposted.append(read)
        else:
            self._post_read(read)

    def _post_read(self, read: BlockRead) -> None:
        try:
            theirs = self._peers.get(read.peer)
            if theirs is None:
                raise TransferError(f"peer {read.peer} is not connected")
            blocks = read.remote_blocks, read.local_blocks
            pieces = plan_blocks(theirs, self.layout, *blocks, layers=read.layers)
            read.handle = self.transport.post_read(
                read.peer, [remote for remote, _ in pieces], [local for _, local in pieces]
            )
            self._reads.append(read)
            self._posted_at = self._clock()
        except Exception as error:
            _reject(read, error if isinstance(error, TransferError) else _wrapped(error))
            read.terminal.set_result(None)

    def _begin_probe(self, probe: Probe) -> None:
        theirs = self._peers.get(probe.peer)
        if theirs is None:
            probe.reject(f"peer {probe.peer} is not connected")
        else:
            self._probes.begin(probe, theirs.num_bytes)

    def _advance(self) -> None:
        self.transport.progress()
        self._probes.advance()
        for read in list(self._reads):
            assert read.handle is not None
            try:
                state = self.transport.poll(read.handle)
            except Exception as error:  # nobody knows whether its bytes still arrive
                logger.exception("the transport lost a read from %s", read.peer)
                self._reads.remove(read)
                self.num_abandoned += 1
                _reject(read, _wrapped(error))
                continue
            if state is ReadState.IN_FLIGHT:
                if not read.verified.done() and self._clock() >= read.deadline:
                    _reject(read, TransferError("the read did not finish within its time"))
                continue
            self._reads.remove(read)
            self._conclude(read, state)
        self._post_waiting()

    def _post_waiting(self) -> None:
        while self._unposted:
            if self._clock() >= self._unposted[0].deadline:
                _never_posted(self._unposted.popleft(), "the read did not begin within its time")
            elif len(self._reads) < MAX_READS_AT_ONCE:
                self._post_read(self._unposted.popleft())
            else:
                return

    def _conclude(self, read: BlockRead, state: ReadState) -> None:
        """No byte arrives any more: both ends of the read are told, whatever happens."""
        try:
            if state is ReadState.DONE:
                self.kv_bytes_read += read.num_bytes
                self._verify(read)
            else:
                _reject(read, TransferError("the read failed"))
                self._forget(read.peer)  # its connection is of no use any more
        except Exception as error:
            logger.exception("a read from %s could not be judged", read.peer)
            _reject(read, _wrapped(error))
        read.terminal.set_result(None)

    def _verify(self, read: BlockRead) -> None:
        if read.verified.done():
            return
        if read.checksums:
            found = self._checksums(read.local_blocks)
            bad = sum(a != b for a, b in zip(found, read.checksums, strict=True))
            if bad:
                self.num_corrupt_blocks += bad
                total = len(found)
                _reject(read, TransferError(f"{bad} of {total} blocks failed their checksum"))
                return
        read.verified.set_result(None)

    def _fail_all(self, reason: str) -> None:
        for read in self._reads:
            _reject(read, TransferError(reason))
        # `terminal` stays open: nobody can promise that no byte arrives. The blocks stay
        # quarantined until the process ends.
        self.num_abandoned += len(self._reads)
        self._reads.clear()
        while self._unposted:
            _never_posted(self._unposted.popleft(), reason)
        self._probes.reject_all(reason)


def _reject(read: BlockRead, error: TransferError) -> None:
    if not read.verified.done():
        read.verified.set_exception(error)


def _never_posted(read: BlockRead, reason: str) -> None:
    _reject(read, TransferError(reason))
    read.terminal.set_result(None)


def _wrapped(error: Exception) -> TransferError:
    return TransferError(f"{type(error).__name__}: {error}")
