"""The prefill side of a handoff: credit first, then chunks announced while the next computes.

One task owns an attempt from its arrival until its reader has released it, or it has failed. Its
blocks stay leased until the reader says that it is done, the lease expires, or the reader is gone.

    credit wait -> lease open -> (chunk -> announce)* -> last chunk + first token -> released
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from segue.cluster.errors import (
    AttemptFailed,
    DeadlineExceeded,
    FailureKind,
    SegueError,
    StaleReference,
    Unavailable,
)
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    Failure,
    LeaseRelease,
    LeaseVerdict,
    RebindOrder,
    RebindOutcome,
    RebindReport,
    Reservation,
    ReserveOutcome,
    TokenDelta,
)
from segue.cluster.identity import AttemptId, Peer
from segue.kvtransfer.lease import EndedLease
from segue.workers.attempts import Attempts, Running
from segue.workers.credit_wait import CreditWait, Inquiry
from segue.workers.engine import Engine
from segue.workers.frame_outbox import FrameOutbox
from segue.workers.lease_desk import LeaseDesk
from segue.workers.peers import Peers
from segue.workers.sequence import Phase, Sequence
from segue.workers.step_outcome import ChunkReady, Ended

logger = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 5.0
CANCEL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Released:
    completed: bool


@dataclass(frozen=True, slots=True)
class LeaseLost:
    pass


class PrefillRole:
    def __init__(
        self,
        *,
        attempts: Attempts,
        engine: Engine,
        outbox: FrameOutbox,
        peers: Peers,
        leases: LeaseDesk,
        credit_wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._attempts = attempts
        self._engine = engine
        self._outbox = outbox
        self._peers = peers
        self._leases = leases
        self._credit_wait_s = credit_wait_s
        self._clock = clock
        self._background: set[asyncio.Task[None]] = set()
        self._waits: dict[AttemptId, CreditWait] = {}

    def submit(self, assignment: Assignment, decode: Peer) -> None:
        """Take on an attempt whose answer `decode` will write."""
        now = self._clock()
        sequence = Sequence(
            assignment,
            deadline=now + assignment.timeout_seconds,
            decode_peer=decode,
            phase=Phase.CREDIT_WAIT,
            arrived=now - assignment.waited_seconds,
        )

        def abort(reason: str) -> None:
            # Not before its first step: a task cancelled earlier never runs its `finally`.
            asyncio.get_running_loop().call_soon(task.cancel, reason)

        running = Running(sequence, abort)
        self._outbox.expect(assignment.gateway_id)
        self._attempts.begin(running)
        task = self._in_background(self._own(running, decode))

    async def rebind(self, order: RebindOrder) -> RebindReport:
        """Another decode worker seems to have room for a prompt that still waits for a credit."""
        wait = self._waits.get(order.attempt)
        if wait is None:
            return RebindReport(RebindOutcome.SETTLED, f"{order.attempt} waits for no credit here")
        return await wait.rebind(order.decode, min(order.wait_seconds, self._credit_wait_s))

    # -- the owner of one attempt ------------------------------------------------------------

    async def _own(self, running: Running, decode: Peer) -> None:
        sequence = running.sequence
        outcome = "aborted"
        has_credit = False
        try:
            async with asyncio.timeout(max(0.0, sequence.deadline - self._clock())):
                decode = await self._credit(sequence, decode)
                has_credit = True
                outcome = await self._stream_chunks(running, decode)
        except asyncio.CancelledError:
            pass  # the gateway, or the reader, wants it no more
        except TimeoutError:
            message = f"deadline reached while in {sequence.phase}"
            outcome = self._report(
                sequence, AttemptFailed(FailureKind.DEADLINE, message, retryable=False)
            )
        except SegueError as error:
            outcome = self._report(sequence, error)
        except Exception as error:
            logger.exception("handing off %s failed", sequence.attempt)
            outcome = self._report(sequence, AttemptFailed(FailureKind.COMPUTE, repr(error)))
        finally:
            self._attempts.end(sequence.attempt, outcome)
            if outcome != "handed_off":
                self._engine.post(lambda: self._engine.drop(sequence))
                self._end_queued_leases(running)
                if has_credit:
                    lease_id = sequence.lease_id
                    self._in_background(self._cancel(sequence, decode, lease_id, outcome))

    async def _credit(self, sequence: Sequence, decode: Peer) -> Peer:
        """Wait for a credit; with it the sequence is queued here, under an open lease. Returns
        whose it is: `decode`, unless the request was bound to another one meanwhile."""
        self._engine.post(lambda: self._engine.expect(sequence.attempt))

        def reserve(peer: Peer, lease_id: str, wait_s: float) -> Awaitable[ReserveOutcome]:
            self._leases.expect(lease_id, peer.identity, sequence.attempt)
            waited = sequence.waited(self._clock())
            assignment = replace(sequence.assignment, waited_seconds=waited)
            reservation = Reservation(assignment, self._peers.me, lease_id, wait_s)
            return self._reserve(peer, reservation)

        wait = self._waits[sequence.attempt] = CreditWait(decode, self._credit_wait_s, reserve)
        try:
            credit = await wait.result()
            sequence.decode_peer, sequence.lease_id = credit.decode, credit.lease_id
            self._open_lease(credit)
            if credit.decode != decode:
                self._engine.post(lambda: self._engine.scheduler.rebound(sequence.attempt))
            known = credit.num_cached_blocks
            self._engine.post(lambda: self._engine.add(sequence, known), sequence)
            return credit.decode
        finally:
            del self._waits[sequence.attempt]
            for lease_id in wait.refused:
                self._leases.retract(lease_id)
            for asked in wait.losers:
                self._in_background(
                    self._cancel(sequence, asked.decode, asked.lease_id, "it waits no more")
                )

    def _open_lease(self, credit: Inquiry) -> None:
        try:
            self._leases.open(credit.lease_id)
        except StaleReference as error:
            message = f"{credit.decode.identity} granted a credit and gave it back: {error.message}"
            raise AttemptFailed(FailureKind.PEER_LOST, message) from error

    async def _reserve(self, decode: Peer, reservation: Reservation) -> ReserveOutcome:
        deadline_s = reservation.wait_seconds + 5.0
        try:
            return await self._peers.client(decode).reserve(reservation, deadline_s=deadline_s)
        except (Unavailable, StaleReference) as error:
            raise AttemptFailed(FailureKind.PEER_LOST, error.message) from error
        except DeadlineExceeded as error:
            raise AttemptFailed(FailureKind.CREDIT_TIMEOUT, error.message) from error
        except AttemptFailed as error:  # the target's own words, for which we are not to blame
            untouched = error.failure in (FailureKind.DRAINING, FailureKind.BUSY)
            kind = error.failure if untouched else FailureKind.CREDIT_REFUSED
            failure = Failure(kind, error.message, error.retryable)
            return ReserveOutcome(failure=failure)

    async def _stream_chunks(self, running: Running, decode: Peer) -> str:
        """Follow the engine's events to the one that ends the attempt; returns the outcome."""
        sequence = running.sequence
        while True:
            event = await running.events.get()
            if isinstance(event, ChunkReady):
                await self._announce(event, decode)
            elif isinstance(event, Released):
                return "handed_off" if event.completed else "handoff_failed"
            elif isinstance(event, LeaseLost):
                raise AttemptFailed(FailureKind.PEER_LOST, f"{decode.identity} stopped renewing")
            elif isinstance(event, Ended):
                if event.failure is not None:
                    raise event.failure.to_error()
                assert event.finish is not None
                return event.finish.value  # the first token ended the answer
            else:
                raise TypeError(f"unexpected event {event!r} for {sequence.attempt}")

    async def _announce(self, chunk: ChunkReady, decode: Peer) -> None:
        sequence = chunk.sequence
        try:
            # Also with no new blocks: this is refused if the lease has ended meanwhile.
            self._leases.add_blocks(sequence.lease_id, chunk.block_ids if chunk.leases else ())
        except Exception:
            self.discard(chunk)
            raise
        announcement = Announcement(
            source=self._peers.me,
            attempt=sequence.attempt,
            pool_generation=self._leases.generation,
            first_block=chunk.first_block,
            block_ids=chunk.block_ids,
            checksums=chunk.checksums,
            first_token=chunk.first_token,
            cached_tokens=sequence.num_reused,
            first_layer=chunk.first_layer,
            stop_layer=chunk.stop_layer,
        )
        try:
            await self._peers.client(decode).announce(announcement, deadline_s=ANNOUNCE_SECONDS)
        except (Unavailable, DeadlineExceeded, StaleReference) as error:
            raise AttemptFailed(FailureKind.PEER_LOST, error.message) from error

    # -- what ends an attempt from outside ---------------------------------------------------

    def release(self, release: LeaseRelease) -> LeaseVerdict:
        """The reader is done with the blocks. Only a lease that was held all the time counts."""
        verdict = self._leases.release(release)
        running = self._attempts.get(release.attempt)
        if running is not None and running.sequence.lease_id == release.lease_id:
            running.events.put_nowait(Released(release.completed and verdict.held))
        return verdict

    def on_lease_expired(self, lease: EndedLease) -> None:
        running = self._attempts.get(lease.attempt)
        if running is not None and running.sequence.lease_id == lease.lease_id:
            running.events.put_nowait(LeaseLost())

    def discard(self, chunk: ChunkReady) -> None:
        """A chunk of an attempt that has ended meanwhile: nobody will read it."""
        if not chunk.leases:
            return
        self._engine.post(lambda: self._engine.end_lease(chunk.block_ids))

    def _end_queued_leases(self, running: Running) -> None:
        while not running.events.empty():
            event = running.events.get_nowait()
            if isinstance(event, ChunkReady):
                self.discard(event)

    async def _cancel(self, sequence: Sequence, decode: Peer, lease_id: str, reason: str) -> None:
        """Tell the other half at once; its Release frees the blocks.

        If it does not answer, or has nothing to release, the lease ends here and now: should it
        still be reading, the fence makes it throw away what it read.
        """
        try:
            await self._peers.client(decode).cancel(
                self._peers.me, sequence.attempt, reason, deadline_s=CANCEL_SECONDS
            )
        except SegueError as error:
            logger.info("could not cancel %s at %s: %s", sequence.attempt, decode.identity, error)
            self._leases.abandon(lease_id, sequence.attempt)
        finally:  # not before: it would take its lease for lost, and say so to the gateway
            self._leases.retract(lease_id)

    def _report(self, sequence: Sequence, error: SegueError) -> str:
        failure = (
            Failure(error.failure, error.message, error.retryable)
            if isinstance(error, AttemptFailed)
            else Failure(FailureKind.TRANSFER, error.message)
        )
        delta = TokenDelta(sequence.attempt, sequence.num_context, failure=failure)
        self._outbox.put(sequence.assignment.gateway_id, delta)
        return failure.kind.value

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self, timeout_s: float) -> None:
        """Let those that were aborted tell their other half, within `timeout_s`."""
        end = asyncio.get_running_loop().time() + timeout_s
        while self._background and (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._background, timeout=left)  # an owner leaves a Cancel behind
        late = list(self._background)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
