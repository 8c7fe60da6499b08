"""A worker as its peers see it: answers every call, and carries the engine's news to whom it
concerns. Lives on the event loop; owns the roles, the outbox and the table of attempts.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import InternalError
from segue.cluster.fences import Fences
from segue.cluster.fleet import Sources
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    LeaseRelease,
    LeaseVerdict,
    MigrationOrder,
    MigrationReport,
    RebindOrder,
    RebindReport,
    Reservation,
    ReserveOutcome,
    TokenDelta,
    WorkerDescription,
)
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.step_trace import StepRecord
from segue.cluster.worker_status import WorkerCondition, WorkerStatus
from segue.kvtransfer.lease import EndedLease
from segue.workers.attempts import Attempts, Running
from segue.workers.audit import Audit
from segue.workers.decode_role import DecodeRole
from segue.workers.drain import Drain
from segue.workers.frame_outbox import FrameOutbox
from segue.workers.lease_desk import LeaseDesk
from segue.workers.migration import Migrations
from segue.workers.news import News
from segue.workers.parts import WorkerParts
from segue.workers.prefill_role import PrefillRole
from segue.workers.sequence import Sequence as TokenSequence
from segue.workers.status_report import report
from segue.workers.step_outcome import StepOutcome
from segue.workers.watchdog import Diagnosis, Watchdog

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2048
CLOSE_SECONDS = 2.0


class WorkerService:
    """Implements WorkerApi."""

    def __init__(
        self,
        parts: WorkerParts,
        transfer: TransferConfig,
        clock: Callable[[], float] = time.monotonic,
        absence_s: float = 10.0,
        stalled_after_s: float = 60.0,
    ) -> None:
        """A gateway that does not listen for `absence_s` has its attempts ended."""
        self.parts = parts
        self.fences = Fences()
        self.attempts = Attempts(MAX_ATTEMPTS, self.fences)
        self.outbox = FrameOutbox(self._gateway_is_absent, absence_s)
        self.leases = LeaseDesk(
            parts.engine,
            parts.receiver,
            transfer.lease_s,
            clock,
            on_expired=self._on_lease_expired,
            fences=self.fences,
        )
        self.prefill = PrefillRole(
            attempts=self.attempts,
            engine=parts.engine,
            outbox=self.outbox,
            peers=parts.peers,
            leases=self.leases,
            credit_wait_s=transfer.credit_wait_s,
            clock=clock,
        )
        self.decode = DecodeRole(
            attempts=self.attempts,
            engine=parts.engine,
            outbox=self.outbox,
            peers=parts.peers,
            receiver=parts.receiver,
            read_timeout_s=transfer.read_timeout_s,
            lease_s=transfer.lease_s,
            clock=clock,
            fences=self.fences,
        )
        self.migrations = Migrations(
            attempts=self.attempts,
            engine=parts.engine,
            peers=parts.peers,
            leases=self.leases,
            transfer=transfer,
            block_bytes=parts.facts.block_bytes,
            clock=clock,
        )
        self.audit = Audit(self.attempts, parts.engine, self._forgotten)
        self.news = News(self.attempts, parts.engine, self.outbox, self.prefill, self.decode)
        self.draining = Drain(self.attempts, self.leases, self.outbox)
        self._clock = clock
        self._watchdog = Watchdog(parts.engine, parts.receiver, stalled_after_s, clock)
        self._transfer = transfer

    @property
    def identity(self) -> WorkerIdentity:
        return self.parts.peers.identity

    # -- WorkerApi ---------------------------------------------------------------------------

    async def submit(self, assignment: Assignment, decode: Peer | None) -> None:
        self.audit.start()
        if decode is not None and decode.identity != self.identity:
            self.prefill.submit(assignment, decode)
            return
        now = self._clock()
        sequence = TokenSequence(
            assignment,
            deadline=now + assignment.timeout_seconds,
            arrived=now - assignment.waited_seconds,
        )
        engine = self.parts.engine

        def abort(reason: str) -> None:
            if self.attempts.end(sequence.attempt, "aborted") is not None:
                engine.post(lambda: engine.drop(sequence))

        self.outbox.expect(assignment.gateway_id)
        self.attempts.begin(Running(sequence, abort))
        engine.post(lambda: engine.add(sequence))

    async def abort(self, attempts: Sequence[AttemptId]) -> None:
        for attempt in attempts:
            if not self.migrations.abort(attempt):
                self.attempts.abort(attempt, "aborted by the gateway")

    def frames(self, gateway_id: str) -> AsyncIterator[list[TokenDelta]]:
        return self.outbox.listen(gateway_id)

    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        self.audit.start()
        return await self.decode.reserve(reservation)

    async def announce(self, announcement: Announcement) -> None:
        await self.decode.announce(announcement)

    async def cancel(self, source: Peer, attempt: AttemptId, reason: str) -> None:
        self.decode.cancel(source.identity, attempt, reason)

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        verdict = self.prefill.release(release)
        self.migrations.on_release(release, verdict)
        return verdict

    async def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
        return self.leases.renew(holder, lease_ids)

    async def rebind(self, order: RebindOrder) -> RebindReport:
        return await self.prefill.rebind(order)

    async def migrate(self, order: MigrationOrder) -> MigrationReport:
        return await self.migrations.migrate(order)

    async def drain(self, reason: str) -> None:
        self.draining.begin(reason)

    async def describe(self) -> WorkerDescription:
        """From a peer that is about to read here for the first time."""
        parts = self.parts
        parts.receiver.attend(self._transfer.preflight_timeout_s)
        return WorkerDescription(
            parts.peers.me,
            parts.facts.role,
            parts.facts.fingerprint,
            parts.receiver.transport.name,
            parts.facts.transport_metadata,
            parts.engine.cache.pool.generation,
            parts.facts.num_blocks,
            parts.receiver.probe_bytes,
        )

    async def status(self) -> WorkerStatus:
        return self.status_now()

    async def trace(self, num_steps: int) -> tuple[StepRecord, ...]:
        return self.parts.engine.recorder.last(num_steps)

    def status_now(self) -> WorkerStatus:
        diagnosis = self._watchdog.diagnose()
        if diagnosis.condition is WorkerCondition.READY and self.draining.begun.is_set():
            diagnosis = Diagnosis(WorkerCondition.DRAINING, self.draining.reason)
        status = report(self.parts, self.attempts, self.leases, self.decode, diagnosis)
        more = self.fences.counters() | {"defects_lost_news": float(self.news.num_lost)}
        return replace(status, counters=status.counters | more)

    def beat(self) -> WorkerStatus:
        """What every heartbeat carries: of the pairs only those that routing must avoid."""
        status = self.status_now()
        return replace(status, pairs=tuple(pair for pair in status.pairs if pair.is_refused))

    def on_sources(self, sources: Sources) -> None:
        """The controller's word on whom this worker may have to read from."""
        self.parts.peers.greet(sources, self.parts.receiver)

    def _on_lease_expired(self, lease: EndedLease) -> None:
        self.prefill.on_lease_expired(lease)
        self.migrations.on_lease_expired(lease)

    # -- news from the engine ----------------------------------------------------------------

    def on_outcome(self, outcome: StepOutcome) -> None:
        """Called on the event loop, once a step or more often."""
        self.news.pass_on(outcome)

    def _forgotten(self, sequence: TokenSequence) -> None:
        error = InternalError("it has left the engine, and nobody heard of it")
        self.news.lost(sequence, error)

    def _gateway_is_absent(self, gateway_id: str) -> None:
        """Nobody can be told about these attempts: they end."""
        orphans = [
            running
            for running in self.attempts.all()
            if running.sequence.assignment.gateway_id == gateway_id
        ]
        if orphans:
            logger.warning("gateway %s is gone; ending its %d attempts", gateway_id, len(orphans))
        for running in orphans:
            running.abort("the gateway is gone")

    async def close(self) -> None:
        for running in self.attempts.all():
            running.abort("the worker stops")
        await asyncio.sleep(0)  # aborts take effect in the next turn of the loop
        await self.migrations.close(CLOSE_SECONDS)
        await self.decode.close(CLOSE_SECONDS)
        await self.prefill.close(CLOSE_SECONDS)
        self.leases.close()
        await self.audit.stop()
        self.outbox.close()
        await self.parts.peers.close()
