"""What can be asked of a worker, without saying over which wire."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from segue.cluster.fences import Fences
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
from segue.cluster.worker_status import WorkerStatus


class WorkerApi(Protocol):
    """The calls a worker answers. Each may raise a SegueError.

    `identity` fences every call: one that was meant for another incarnation never gets here.
    """

    @property
    def identity(self) -> WorkerIdentity: ...

    @property
    def fences(self) -> Fences:
        """Where the calls that are refused as stale are counted."""
        ...

    async def submit(self, assignment: Assignment, decode: Peer | None) -> None:
        """From a gateway: take this attempt. Tokens, or its failure, come by `frames`."""
        ...

    async def abort(self, attempts: Sequence[AttemptId]) -> None:
        """From a gateway: nobody wants these any more. Unknown ones are ignored."""
        ...

    def frames(self, gateway_id: str) -> AsyncIterator[list[TokenDelta]]:
        """For a gateway: one list a step that had news for it. Ends never by itself."""
        ...

    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        """From a prefill worker: wait for room and grant a credit, or refuse."""
        ...

    async def announce(self, announcement: Announcement) -> None:
        """From a prefill worker: these blocks of a reserved attempt may be read."""
        ...

    async def cancel(self, source: Peer, attempt: AttemptId, reason: str) -> None:
        """From a prefill worker: the attempt is over on its side; its credit returns."""
        ...

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        """From a decode worker: the reads are terminal; was the lease held throughout?"""
        ...

    async def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
        """From decode worker `holder`: keep these leases; returns those that it does not hold."""
        ...

    async def rebind(self, order: RebindOrder) -> RebindReport:
        """From a gateway, to a prefill worker: another decode worker seems to have room."""
        ...

    async def migrate(self, order: MigrationOrder) -> MigrationReport:
        """From a gateway: hand a running attempt over. Whatever is raised, it goes on here, unless
        it has ended. An Abort of the new attempt gives the move up."""
        ...

    async def drain(self, reason: str) -> None:
        """Take nothing new from now on, and leave once everything is done."""
        ...

    async def describe(self) -> WorkerDescription: ...

    async def status(self) -> WorkerStatus: ...

    async def trace(self, num_steps: int) -> tuple[StepRecord, ...]:
        """The newest steps of the engine that were recorded, oldest first."""
        ...
