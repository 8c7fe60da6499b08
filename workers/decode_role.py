"""The decode side of a handoff: credit, reading blocks while they are announced, fence, landing.

One task owns an attempt from its credit until it generates or has failed. Whatever ends it, its
landing blocks are freed only when no read into them can be in flight, and its source is told.

    reserve -> queued -> granted -> announce* -> reads terminal -> Release (fence) -> land
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from segue.cluster.errors import (
    AttemptFailed,
    FailureKind,
    SegueError,
    StaleReference,
    TransferError,
)
from segue.cluster.handoff import (
    Announcement,
    Failure,
    LeaseRelease,
    Reservation,
    ReserveOutcome,
    TokenDelta,
)
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.kvtransfer.receiver import BlockRead, Receiver
from segue.workers.attempts import Attempts, Running
from segue.workers.engine import Engine
from segue.workers.frame_outbox import FrameOutbox
from segue.workers.peers import Peers
from segue.workers.sequence import Sequence

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Granted:
    """The engine has given the attempt its blocks."""


@dataclass(slots=True, eq=False)
class Landing:
    """A credit in use: what was announced, what is being read."""

    running: Running
    reservation: Reservation
    announced: asyncio.Queue[Announcement] = field(default_factory=asyncio.Queue)
    granted: asyncio.Future[int] = field(default_factory=asyncio.Future)
    reads: list[BlockRead] = field(default_factory=list)
    generation: int | None = None
    next_block: int = 0
    renewed_at: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def sequence(self) -> Sequence:
        return self.running.sequence


class DecodeRole:
    def __init__(
        self,
        *,
        attempts: Attempts,
        engine: Engine,
        outbox: FrameOutbox,
        peers: Peers,
        receiver: Receiver,
        read_timeout_s: float,
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._attempts = attempts
        self._engine = engine
        self._outbox = outbox
        self._peers = peers
        self._receiver = receiver
        self._read_timeout_s = read_timeout_s
        self._lease_s = lease_s
        self._clock = clock
        self._landings: dict[AttemptId, Landing] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._renewal: asyncio.Task[None] | None = None
        # Of prompts that were announced whole: blocks read, and those that had arrived when the
        # source said that the last chunk was computed.
        self.blocks_read = 0
        self.blocks_overlapped = 0

    # -- calls from the prefill worker -------------------------------------------------------

    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        """Queue for room and wait for it; the credit lives as long as the source renews."""
        await self._peers.connect(reservation.source, self._receiver)
        now = self._clock()
        assignment = reservation.assignment
        sequence = Sequence(
            assignment,
            deadline=now + assignment.timeout_seconds,
            source=reservation.source,
            lease_id=reservation.lease_id,
            arrived=now,
        )
        running = Running(sequence, abort=lambda reason: self._abort(sequence.attempt, reason))
        landing = Landing(running, reservation)
        self._attempts.begin(running)
        self._landings[sequence.attempt] = landing
        landing.task = asyncio.create_task(self._own(landing), name=f"land {sequence.attempt}")
        self._engine.post(lambda: self._engine.add(sequence))
        self._start_renewal()
        try:
            async with asyncio.timeout(reservation.wait_seconds):
                return ReserveOutcome(await asyncio.shield(landing.granted))
        except TimeoutError:
            message = f"no room within {reservation.wait_seconds} s"
            failure = Failure(FailureKind.CREDIT_TIMEOUT, message)
        except AttemptFailed as error:
            failure = Failure(error.failure, str(error), error.retryable)
        except asyncio.CancelledError:  # the caller is gone
            landing.task.cancel("the reservation call ended")
            raise
        landing.task.cancel(failure.message)
        return ReserveOutcome(failure=failure)

    def announce(self, announcement: Announcement) -> None:
        landing = self._landings.get(announcement.attempt)
        if landing is None:
            raise StaleReference(f"{announcement.attempt} has no credit here")
        if announcement.source.identity != landing.reservation.source.identity:
            raise StaleReference(f"{announcement.attempt} was reserved by another worker")
        landing.announced.put_nowait(announcement)

    def cancel(self, source: WorkerIdentity, attempt: AttemptId, reason: str) -> None:
        landing = self._landings.get(attempt)
        if landing is not None and landing.reservation.source.identity == source:
            self._abort(attempt, reason)

    # -- from the engine, on the event loop --------------------------------------------------

    def on_granted(self, sequence: Sequence) -> None:
        landing = self._landings.get(sequence.attempt)
        if landing is not None and not landing.granted.done():
            landing.next_block = sequence.num_published
            landing.renewed_at = self._clock()
            landing.granted.set_result(sequence.num_published)

    def on_ended(self, sequence: Sequence, failure: Failure) -> bool:
        """The engine ended an attempt that has not landed. False: it is not one of ours."""
        landing = self._landings.get(sequence.attempt)
        if landing is None:
            return False
        if not landing.granted.done():
            landing.granted.set_exception(failure.to_error())
        elif landing.task is not None:
            landing.task.cancel(failure.message)
        return True

    # -- the owner of one attempt ------------------------------------------------------------

    async def _own(self, landing: Landing) -> None:
        attempt = landing.sequence.attempt
        outcome = "cancelled"
        landed = False
        try:
            last = await self._receive(landing)
            await self._fence(landing)
            landed = await asyncio.wrap_future(
                self._engine.call(lambda: self._engine.land(attempt, last))
            )
            if not landed:
                raise AttemptFailed(FailureKind.DEADLINE, "ended before it landed")
        except asyncio.CancelledError:
            pass  # whoever cancelled has said why, or nobody wants to know
        except SegueError as error:
            outcome = self._report(landing, error)
        except Exception as error:
            logger.exception("receiving %s failed", attempt)
            outcome = self._report(landing, AttemptFailed(FailureKind.TRANSFER, repr(error)))
        finally:
            self._landings.pop(attempt, None)
            if not landing.granted.done():
                landing.granted.set_exception(
                    AttemptFailed(FailureKind.PEER_LOST, "given up before there was room")
                )
                landing.granted.exception()  # whoever waits has it; nobody has to
            if not landed:
                self._attempts.end(attempt, outcome)
                self._in_background(self._give_back(landing))

    async def _receive(self, landing: Landing) -> Announcement:
        """Read every announced block; return the last announcement. All reads are verified."""
        await asyncio.shield(landing.granted)
        while True:
            left = landing.sequence.deadline - self._clock()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    announcement = await landing.announced.get()
            except TimeoutError:
                raise AttemptFailed(
                    FailureKind.DEADLINE, "the prompt's KV was not announced", retryable=False
                ) from None
            self._read(landing, announcement)
            if announcement.first_token is not None:
                break
            self._raise_early_failure(landing)
        self.blocks_read += sum(len(read.local_blocks) for read in landing.reads)
        self.blocks_overlapped += sum(
            len(read.local_blocks) for read in landing.reads if read.verified.done()
        )
        expected = -(-landing.sequence.num_context // self._block_size)
        if landing.next_block != expected:
            raise TransferError(f"{landing.next_block} of {expected} blocks were announced")
        for read in landing.reads:
            await asyncio.wrap_future(read.verified)
        return announcement

    def _read(self, landing: Landing, announcement: Announcement) -> None:
        if landing.generation is None:
            landing.generation = announcement.pool_generation
        if announcement.pool_generation != landing.generation:
            raise StaleReference("the source's pool generation changed during the handoff")
        first, count = announcement.first_block, len(announcement.block_ids)
        if first != landing.next_block or first + count > len(landing.sequence.block_ids):
            raise TransferError(f"blocks [{first}, {first + count}) were announced out of order")
        landing.next_block = first + count
        if count:
            read = self._receiver.read(
                landing.reservation.source.identity.incarnation,
                announcement.block_ids,
                tuple(landing.sequence.block_ids[first : first + count]),
                announcement.checksums,
                self._read_timeout_s,
            )
            landing.reads.append(read)

    def _raise_early_failure(self, landing: Landing) -> None:
        for read in landing.reads:
            if read.verified.done() and (error := read.verified.exception()) is not None:
                raise error

    async def _fence(self, landing: Landing) -> None:
        """Ask the source whether the blocks were ours all the time. Fails closed."""
        generation = landing.generation
        assert generation is not None
        verdict = await self._peers.client(landing.reservation.source).release(
            LeaseRelease(
                landing.sequence.lease_id, landing.sequence.attempt, generation, completed=True
            ),
            deadline_s=RELEASE_SECONDS,
        )
        if not verdict.held:
            raise AttemptFailed(FailureKind.FENCED, verdict.reason)

    def _report(self, landing: Landing, error: SegueError) -> str:
        """Tell the reservation's caller if it still waits, else the gateway."""
        if isinstance(error, AttemptFailed):
            failure = Failure(error.failure, error.message, error.retryable)
        elif isinstance(error, StaleReference):
            failure = Failure(FailureKind.FENCED, error.message)
        else:
            failure = Failure(FailureKind.TRANSFER, error.message)
        if landing.granted.done() and landing.granted.exception() is None:
            delta = TokenDelta(
                landing.sequence.attempt, landing.sequence.num_context, failure=failure
            )
            self._outbox.put(landing.sequence.assignment.gateway_id, delta)
        return failure.kind.value

    async def _give_back(self, landing: Landing) -> None:
        """Free what was reserved, once no byte can arrive any more, and tell the source."""
        for read in landing.reads:
            await asyncio.wrap_future(read.terminal)
        attempt = landing.sequence.attempt
        self._engine.post(lambda: self._engine.drop(attempt))
        release = LeaseRelease(
            landing.sequence.lease_id, attempt, landing.generation or 0, completed=False
        )
        try:
            client = self._peers.client(landing.reservation.source)
            await client.release(release, deadline_s=RELEASE_SECONDS)
        except SegueError as error:  # its lease expires there
            logger.info("could not release %s at its source: %s", attempt, error)

    def _abort(self, attempt: AttemptId, reason: str) -> None:
        landing = self._landings.get(attempt)
        if landing is not None and landing.task is not None:
            landing.task.cancel(reason)
            return
        if self._attempts.end(attempt, "aborted") is not None:  # it generates already
            self._engine.post(lambda: self._engine.drop(attempt))

    # -- renewal -----------------------------------------------------------------------------

    def _start_renewal(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew_while_landing(), name="renewal")

    async def _renew_while_landing(self) -> None:
        """Every third of a lease, one call a source. Ends when nothing is landing."""
        while self._landings:
            await asyncio.sleep(self._lease_s / 3)
            by_source: dict[WorkerIdentity, list[Landing]] = {}
            for landing in self._landings.values():
                if landing.granted.done() and landing.granted.exception() is None:
                    by_source.setdefault(landing.reservation.source.identity, []).append(landing)
            for landings in by_source.values():
                await self._renew(landings)

    async def _renew(self, landings: list[Landing]) -> None:
        source = landings[0].reservation.source
        lease_ids = [landing.sequence.lease_id for landing in landings]
        try:
            unknown = await self._peers.client(source).renew(
                self._peers.identity, lease_ids, deadline_s=min(5.0, self._lease_s / 3)
            )
        except SegueError as error:
            logger.warning("could not renew leases at %s: %s", source.identity, error)
            lapsed = self._clock() - self._lease_s
            for landing in landings:
                if landing.renewed_at <= lapsed:
                    self._give_up(landing, f"{source.identity} does not answer")
            return
        for landing in landings:
            if landing.sequence.lease_id in unknown:
                self._give_up(landing, "the source lost its lease")
            else:
                landing.renewed_at = self._clock()

    # -- shutting down -----------------------------------------------------------------------

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @property
    def _block_size(self) -> int:
        return self._engine.cache.block_size

    @property
    def num_landing(self) -> int:
        return len(self._landings)

    def lose_source(self, identity: WorkerIdentity) -> None:
        """The source is proven gone: nothing more will be announced."""
        for landing in list(self._landings.values()):
            if landing.reservation.source.identity == identity:
                self._give_up(landing, f"{identity} is gone")

    def _give_up(self, landing: Landing, reason: str) -> None:
        self._report(landing, AttemptFailed(FailureKind.PEER_LOST, reason))
        if landing.task is not None:
            landing.task.cancel(reason)
