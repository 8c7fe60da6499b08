"""Calls to one worker, each with a deadline and fenced by the identity it is meant for."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

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
from segue.cluster.rpc import codec, serving_pb2_grpc
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc.channel import open_channel
from segue.cluster.rpc.fleet_codec import status_from_pb
from segue.cluster.rpc.frame_codec import deltas_from_pb
from segue.cluster.rpc.migration_codec import migration_report_from_pb, migration_to_pb
from segue.cluster.rpc.rebind_codec import rebind_report_from_pb, rebind_to_pb
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.step_trace import StepRecord
from segue.cluster.worker_status import WorkerStatus


class WorkerClient:
    """Every failure is raised as a SegueError; Unavailable means that nobody answered."""

    def __init__(
        self,
        peer: Peer,
        token: str,
        on_broken: Callable[[], None] = lambda: None,
        *,
        security: Security = TOKEN_ALONE,
    ) -> None:
        """`on_broken` is called when the worker does not answer, or another life in its place."""
        self.peer = peer
        self._channel = open_channel(peer.address, token, on_broken, security=security)
        self._stub = serving_pb2_grpc.WorkerStub(self._channel.raw)
        self._target = codec.identity_to_pb(peer.identity)

    @property
    def num_calls(self) -> int:
        """That are under way; streams do not count."""
        return self._channel.num_calls

    async def submit(
        self, assignment: Assignment, decode: Peer | None, *, deadline_s: float
    ) -> None:
        request = pb.SubmitRequest(
            target=self._target,
            assignment=codec.assignment_to_pb(assignment),
            decode=None if decode is None else codec.peer_to_pb(decode),
        )
        await self._channel.unary(self._stub.Submit, request, deadline_s=deadline_s)

    async def abort(self, attempts: Sequence[AttemptId], *, deadline_s: float) -> None:
        request = pb.AbortRequest(
            target=self._target, attempts=[codec.attempt_to_pb(item) for item in attempts]
        )
        await self._channel.unary(self._stub.Abort, request, deadline_s=deadline_s)

    async def frames(self, gateway_id: str) -> AsyncGenerator[list[TokenDelta], None]:
        """Silence is normal here; keepalive ends the stream if the worker is gone."""
        request = pb.FramesRequest(target=self._target, gateway_id=gateway_id)
        stream = self._channel.stream(self._stub.Frames, request, silence_s=None)
        async with aclosing(stream):
            async for frame in stream:
                yield deltas_from_pb(frame)

    async def reserve(self, reservation: Reservation, *, deadline_s: float) -> ReserveOutcome:
        request = codec.reservation_to_pb(self.peer.identity, reservation)
        return codec.outcome_from_pb(
            await self._channel.unary(self._stub.Reserve, request, deadline_s=deadline_s)
        )

    async def announce(self, announcement: Announcement, *, deadline_s: float) -> None:
        request = codec.announcement_to_pb(self.peer.identity, announcement)
        await self._channel.unary(self._stub.Announce, request, deadline_s=deadline_s)

    async def cancel(
        self, source: Peer, attempt: AttemptId, reason: str, *, deadline_s: float
    ) -> None:
        request = pb.CancelRequest(
            target=self._target,
            source=codec.peer_to_pb(source),
            attempt=codec.attempt_to_pb(attempt),
            reason=reason,
        )
        await self._channel.unary(self._stub.Cancel, request, deadline_s=deadline_s)

    async def release(self, release: LeaseRelease, *, deadline_s: float) -> LeaseVerdict:
        request = codec.release_to_pb(self.peer.identity, release)
        reply = await self._channel.unary(self._stub.Release, request, deadline_s=deadline_s)
        return LeaseVerdict(reply.held, reply.reason)

    async def renew(
        self, holder: WorkerIdentity, lease_ids: Sequence[str], *, deadline_s: float
    ) -> set[str]:
        request = pb.RenewRequest(
            target=self._target, holder=codec.identity_to_pb(holder), lease_ids=lease_ids
        )
        reply = await self._channel.unary(self._stub.Renew, request, deadline_s=deadline_s)
        return set(reply.unknown_lease_ids)

    async def rebind(self, order: RebindOrder, *, deadline_s: float) -> RebindReport:
        request = rebind_to_pb(self.peer.identity, order)
        return rebind_report_from_pb(
            await self._channel.unary(self._stub.Rebind, request, deadline_s=deadline_s)
        )

    async def migrate(self, order: MigrationOrder, *, deadline_s: float) -> MigrationReport:
        request = migration_to_pb(self.peer.identity, order)
        return migration_report_from_pb(
            await self._channel.unary(self._stub.Migrate, request, deadline_s=deadline_s)
        )

    async def drain(self, reason: str, *, deadline_s: float) -> None:
        request = pb.DrainRequest(target=self._target, reason=reason)
        await self._channel.unary(self._stub.Drain, request, deadline_s=deadline_s)

    async def describe(self, *, deadline_s: float) -> WorkerDescription:
        request = pb.DescribeRequest(target=self._target)
        return codec.description_from_pb(
            await self._channel.unary(self._stub.Describe, request, deadline_s=deadline_s)
        )

    async def status(self, *, deadline_s: float) -> WorkerStatus:
        return status_from_pb(
            await self._channel.unary(self._stub.Status, pb.StatusRequest(), deadline_s=deadline_s)
        )

    async def trace(self, num_steps: int, *, deadline_s: float) -> list[StepRecord]:
        request = pb.TraceRequest(target=self._target, num_steps=num_steps)
        reply = await self._channel.unary(self._stub.Trace, request, deadline_s=deadline_s)
        return list(map(codec.step_from_pb, reply.steps))

    async def close(self, grace_s: float | None = None) -> None:
        """Calls that are under way get `grace_s` to end."""
        await self._channel.close(grace_s)
