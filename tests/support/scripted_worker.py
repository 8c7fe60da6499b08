"""A worker that only says what a test tells it to say, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from local_fleet import TOKEN

from segue.cluster.config.pool import Role
from segue.cluster.errors import SegueError
from segue.cluster.fences import Fences
from segue.cluster.fleet import WorkerState, WorkerView
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    Failure,
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
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity, new_incarnation
from segue.cluster.request import FinishReason
from segue.cluster.rpc.server import RpcServer, start_server
from segue.cluster.rpc.worker_service import add_worker_service
from segue.cluster.step_trace import StepRecord
from segue.cluster.worker_status import WorkerStatus


@dataclass(slots=True)
class ScriptedWorker:
    """Implements WorkerApi as far as gateways use it; remembers what it was asked."""

    identity: WorkerIdentity
    role: Role
    greets: bool = True
    refusal: SegueError | None = None
    submitted: list[tuple[Assignment, Peer | None]] = field(default_factory=list)
    aborted: list[AttemptId] = field(default_factory=list)
    orders: list[MigrationOrder] = field(default_factory=list)
    outcomes: asyncio.Queue[MigrationReport | SegueError] = field(default_factory=asyncio.Queue)
    rebinds: list[RebindOrder] = field(default_factory=list)
    rebind_reports: asyncio.Queue[RebindReport] = field(default_factory=asyncio.Queue)
    drained: list[str] = field(default_factory=list)
    fences: Fences = field(default_factory=Fences)
    server: RpcServer | None = None
    _said: asyncio.Queue[list[TokenDelta] | None] = field(default_factory=asyncio.Queue)

    @property
    def view(self) -> WorkerView:
        assert self.server is not None
        peer = Peer(self.identity, self.server.address)
        return WorkerView(self.identity, self.role, self.role, WorkerState.READY, peer=peer)

    def say(
        self,
        attempt: AttemptId,
        position: int,
        *tokens: int,
        finish: FinishReason | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._said.put_nowait([TokenDelta(attempt, position, tokens, finish, failure)])

    def hang_up(self) -> None:
        """End the present stream of frames."""
        self._said.put_nowait(None)

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()

    async def frames(self, gateway_id: str) -> AsyncIterator[list[TokenDelta]]:
        if self.greets:
            yield []
        while (deltas := await self._said.get()) is not None:
            yield deltas

    async def submit(self, assignment: Assignment, decode: Peer | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append((assignment, decode))

    async def abort(self, attempts: Sequence[AttemptId]) -> None:
        self.aborted.extend(attempts)

    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        raise NotImplementedError

    async def announce(self, announcement: Announcement) -> None:
        raise NotImplementedError

    async def cancel(self, source: Peer, attempt: AttemptId, reason: str) -> None:
        raise NotImplementedError

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        raise NotImplementedError

    async def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
        raise NotImplementedError

    async def rebind(self, order: RebindOrder) -> RebindReport:
        self.rebinds.append(order)
        return await self.rebind_reports.get()

    async def migrate(self, order: MigrationOrder) -> MigrationReport:
        self.orders.append(order)
        outcome = await self.outcomes.get()
        if isinstance(outcome, SegueError):
            raise outcome
        return outcome

    async def drain(self, reason: str) -> None:
        self.drained.append(reason)

    async def describe(self) -> WorkerDescription:
        raise NotImplementedError

    async def status(self) -> WorkerStatus:
        return WorkerStatus(self.identity, self.role)

    async def trace(self, num_steps: int) -> tuple[StepRecord, ...]:
        return ()


@asynccontextmanager
async def scripted_worker(
    role: Role, worker_id: str = "", *, greets: bool = True
) -> AsyncIterator[ScriptedWorker]:
    worker = ScriptedWorker(
        WorkerIdentity(worker_id or f"{role}-0", new_incarnation()), role, greets
    )
    worker.server = await start_server(
        token=TOKEN, host="127.0.0.1", register=lambda server: add_worker_service(server, worker)
    )
    try:
        yield worker
    finally:
        await worker.stop()
