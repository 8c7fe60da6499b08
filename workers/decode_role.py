"""The decode side of a handoff: credit, reading blocks while they are announced, fence, landing.

One task owns an attempt from its credit until it generates or has failed. Whatever ends it, its
landing blocks are freed only when no read into them can be in flight, and its source is told.

    reserve -> queued -> granted -> announce* -> reads terminal -> Release (fence) -> land
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from segue.cluster.errors import (
    AttemptFailed,
    DeadlineExceeded,
    FailureKind,
    SegueError,
    StaleKind,
    StaleReference,
    TransferError,
    Unavailable,
)
from segue.cluster.fences import Fences, Use
from segue.cluster.handoff import (
    Announcement,
    Failure,
    LeaseRelease,
    Reservation,
    ReserveOutcome,
    TokenDelta,
)
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.kvtransfer.receiver import Receiver
from segue.workers.attempts import Attempts, Running
from segue.workers.credits import Credits
from segue.workers.engine import Engine
from segue.workers.frame_outbox import FrameOutbox
from segue.workers.landing import Landing, failure_of, what_it_needs
from segue.workers.late_reads import LateReads
from segue.workers.lease_renewal import LeaseRenewal
from segue.workers.peers import Peers
from segue.workers.sequence import Sequence

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 5.0


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
        fences: Fences,
    ) -> None:
        self._attempts = attempts
        self._engine = engine
        self._outbox = outbox
        self._peers = peers
        self._receiver = receiver
        self._read_timeout_s = read_timeout_s
        self._clock = clock
        self._fences = fences
        self._landings: dict[AttemptId, Landing] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.credits = Credits(lambda: self._landings.values(), clock)
        self._renewal = LeaseRenewal(
            peers, lease_s, clock, lambda: self._landings.values(), self._give_up
        )
        self._late_reads = LateReads(peers, receiver, read_timeout_s, clock)
        # Of prompts that were announced whole: what was read, and what of it had arrived when the
        # source said that the last chunk was computed.
        self.bytes_announced = 0
        self.bytes_overlapped = 0

    # -- calls from the prefill worker -------------------------------------------------------

    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        """Queue for room and wait for it; the credit lives as long as its lease at the source."""
        return await self.credits.counted(self._reserve(reservation))

    async def _reserve(self, reservation: Reservation) -> ReserveOutcome:
        self._attempts.refuse_if_draining()
        with self._peers.in_use(reservation.source.identity, self._receiver):
            try:
                await self._peers.connect(reservation.source, self._receiver)
            except AttemptFailed as error:
                if error.failure not in (FailureKind.PREFLIGHT, FailureKind.BUSY):
                    raise
                failure = Failure(error.failure, error.message, error.retryable)
                return ReserveOutcome(failure=failure)
            landing = self._begin(reservation)
        assert landing.task is not None
        try:
            async with asyncio.timeout(reservation.wait_seconds):
                return ReserveOutcome(await asyncio.shield(landing.granted))
        except TimeoutError:
            needs = what_it_needs(self._engine, landing)
            message = f"no room within {reservation.wait_seconds:g} s: {needs}"
            landing.task.cancel(message)
            return ReserveOutcome(failure=Failure(FailureKind.CREDIT_TIMEOUT, message))
        except AttemptFailed as error:  # its owner knows, and ends
            return ReserveOutcome(failure=Failure(error.failure, error.message, error.retryable))
        except asyncio.CancelledError:  # the caller is gone
            landing.task.cancel("the reservation call ended")
            raise

    def _begin(self, reservation: Reservation) -> Landing:
        now = self._clock()
        assignment = reservation.assignment
        sequence = Sequence(
            assignment,
            deadline=now + assignment.timeout_seconds,
            source=reservation.source,
            lease_id=reservation.lease_id,
            arrived=now - assignment.waited_seconds,
            moves=reservation.grows,
        )
        running = Running(sequence, abort=lambda reason: self._abort_soon(landing, reason))
        landing = Landing(running, reservation, asked=now)
        self._outbox.expect(assignment.gateway_id)
        self._attempts.begin(running)
        self._landings[sequence.attempt] = landing
        self._peers.use(landing.source.identity)  # until its reads have ended
        landing.task = asyncio.create_task(self._own(landing), name=f"land {sequence.attempt}")
        self._engine.post(lambda: self._engine.add(sequence), sequence)
        self._renewal.start()
        return landing

    async def announce(self, announcement: Announcement) -> None:
        landing = self._landings.get(announcement.attempt)
        if landing is None:
            raise StaleReference(f"{announcement.attempt} has no credit here", StaleKind.ATTEMPT)
        if announcement.source.identity != landing.source.identity:
            message = f"{announcement.attempt} was reserved by another worker"
            raise StaleReference(message, StaleKind.OWNER)
        landing.announced.put_nowait(announcement)
        if announcement.answer_when_read:
            await landing.caught_up()

    def cancel(self, source: WorkerIdentity, attempt: AttemptId, reason: str) -> None:
        """Raises StaleReference if no Release will follow: the source may end its lease itself."""
        landing = self._landings.get(attempt)
        if landing is not None and landing.source.identity == source:
            self._abort_soon(landing, reason)
            return
        if self._attempts.get(attempt) is None:
            self._attempts.forbid(attempt)  # this message may have overtaken its Reserve
        raise StaleReference(f"{attempt} is not landing here", StaleKind.ATTEMPT)

    # -- from the engine, on the event loop --------------------------------------------------

    def on_granted(self, sequence: Sequence) -> None:
        landing = self._landings.get(sequence.attempt)
        if landing is not None and landing.sequence is sequence:
            landing.grant(self._clock())

    def owns(self, sequence: Sequence) -> bool:
        """Its landing's owner will take it out of the engine, when no byte can arrive any more."""
        landing = self._landings.get(sequence.attempt)
        return landing is not None and landing.sequence is sequence

    def on_ended(self, sequence: Sequence, failure: Failure) -> bool:
        """The engine ended a running attempt. True: whoever waits for its credit tells of it."""
        landing = self._landings.get(sequence.attempt)
        if landing is None or landing.sequence is not sequence:
            return False
        if landing.refuse(failure.to_error()):
            return True
        assert landing.task is not None
        landing.task.cancel(failure.message)  # it landed, but its owner has not heard of it yet
        return False

    # -- the owner of one attempt ------------------------------------------------------------

    async def _own(self, landing: Landing) -> None:
        sequence = landing.sequence
        outcome = "cancelled"
        landed = False
        try:
            async with asyncio.timeout(max(0.0, sequence.deadline - self._clock())):
                await asyncio.shield(landing.granted)
                with self._fences.watch(Use.READ):
                    last = await self._receive(landing)
                with self._fences.watch(Use.AFTER_READ):
                    await self._fence(landing)
                landed = await asyncio.wrap_future(
                    self._engine.call(lambda: self._engine.land(sequence, last))
                )
            if not landed:
                raise AttemptFailed(FailureKind.COMPUTE, "ended before it landed")
        except asyncio.CancelledError:
            landed = False  # whoever cancelled has said why, or nobody wants to know
        except Exception as error:
            landed = False
            outcome = self._report(landing, failure_of(sequence, error))
        finally:
            self._landings.pop(sequence.attempt, None)
            if landed:
                self._peers.end_use(landing.source.identity, self._receiver)
            else:
                landing.refuse(AttemptFailed(FailureKind.PEER_LOST, "given up before it had room"))
                self._attempts.end(sequence.attempt, outcome)
                self._in_background(self._give_back(landing))

    async def _receive(self, landing: Landing) -> Announcement:
        last = await landing.receive(
            self._receiver,
            self._read_timeout_s,
            self._engine.cache.block_size,
            lambda num_blocks: self._grow(landing, num_blocks),
        )
        self.bytes_announced += sum(read.num_bytes for read in landing.reads)
        self.bytes_overlapped += landing.early_bytes
        await landing.verify()
        return last

    async def _grow(self, landing: Landing, num_blocks: int) -> None:
        sequence, engine = landing.sequence, self._engine
        limit = engine.cache.blocks_for(engine.cache.final_tokens(sequence))
        if num_blocks > limit:
            raise TransferError(f"{num_blocks} blocks were announced, {limit} are the most")
        grown = engine.call(
            lambda: engine.holds(sequence) and engine.cache.extend_landing(sequence, num_blocks)
        )
        if not await asyncio.wrap_future(grown):
            message = f"no room for {num_blocks} KV blocks of a request that grew while it moved"
            raise AttemptFailed(FailureKind.CREDIT_REFUSED, message)

    async def _fence(self, landing: Landing) -> None:
        """Ask the source whether the blocks were ours all the time. Fails closed."""
        generation = landing.generation
        assert generation is not None
        landing.releasing = True
        sequence = landing.sequence
        release = LeaseRelease(sequence.lease_id, sequence.attempt, generation, completed=True)
        try:
            client = self._peers.client(landing.source)
            verdict = await client.release(release, deadline_s=RELEASE_SECONDS)
        except (Unavailable, DeadlineExceeded) as error:
            raise AttemptFailed(FailureKind.PEER_LOST, error.message) from error
        if not verdict.held:
            raise StaleReference(verdict.reason, StaleKind.LEASE)

    def _report(self, landing: Landing, failure: Failure) -> str:
        """Tell the reservation's caller if it still waits, else the gateway."""
        if not landing.refuse(failure.to_error()) and landing.has_credit:
            delta = TokenDelta(
                landing.sequence.attempt, landing.sequence.num_context, failure=failure
            )
            self._outbox.put(landing.sequence.assignment.gateway_id, delta)
        return failure.kind.value

    async def _give_back(self, landing: Landing) -> None:
        """Free what was reserved, once no byte can arrive any more, and tell the source."""
        try:
            await self._late_reads.end(landing)
        finally:
            self._peers.end_use(landing.source.identity, self._receiver)
        sequence = landing.sequence
        self._engine.post(lambda: self._engine.drop(sequence))
        if not landing.has_credit:
            return  # the source has opened no lease
        release = LeaseRelease(
            sequence.lease_id, sequence.attempt, landing.generation or 0, completed=False
        )
        try:
            client = self._peers.client(landing.source)
            await client.release(release, deadline_s=RELEASE_SECONDS)
        except SegueError as error:  # its lease expires there
            logger.info("could not release %s at its source: %s", sequence.attempt, error)

    def _abort_soon(self, landing: Landing, reason: str) -> None:
        """Not before the owner's first step: a task cancelled earlier never runs its `finally`."""
        asyncio.get_running_loop().call_soon(self._abort, landing, reason)

    def _abort(self, landing: Landing, reason: str) -> None:
        sequence = landing.sequence
        if self._landings.get(sequence.attempt) is landing:
            assert landing.task is not None
            landing.task.cancel(reason)
        elif self._attempts.of(sequence) is not None:  # it generates already
            self._attempts.end(sequence.attempt, "aborted")
            self._engine.post(lambda: self._engine.drop(sequence))

    def _give_up(self, landing: Landing, reason: str) -> None:
        """Its lease is lost, unless it was we who ended that meanwhile."""
        attempt = landing.sequence.attempt
        if self._landings.get(attempt) is not landing or landing.releasing:
            return
        self.credits.expired += 1
        self._report(landing, Failure(FailureKind.PEER_LOST, reason))
        assert landing.task is not None
        landing.task.cancel(reason)

    # -- shutting down -----------------------------------------------------------------------

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self, timeout_s: float) -> None:
        """Let those that were aborted give back what can be given back within `timeout_s`."""
        await self._renewal.stop()
        end = asyncio.get_running_loop().time() + timeout_s
        while (tasks := self._tasks()) and (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tasks, timeout=left)  # an owner leaves a Release behind
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tasks(self) -> set[asyncio.Task[None]]:
        owners = {landing.task for landing in self._landings.values() if landing.task is not None}
        return owners | self._background
