"""The Worker service: unpacks a call, fences it by identity, asks the worker, packs the answer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc.aio

from segue.cluster.errors import StaleKind, StaleReference
from segue.cluster.fences import Use
from segue.cluster.rpc import codec, serving_pb2_grpc
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc.fleet_codec import status_to_pb
from segue.cluster.rpc.frame_codec import deltas_to_pb
from segue.cluster.rpc.migration_codec import migration_from_pb, migration_report_to_pb
from segue.cluster.rpc.rebind_codec import rebind_from_pb, rebind_report_to_pb
from segue.cluster.rpc.server import Context
from segue.cluster.worker_api import WorkerApi


def add_worker_service(server: grpc.aio.Server, worker: WorkerApi) -> None:
    serving_pb2_grpc.add_WorkerServicer_to_server(WorkerServicer(worker), server)


class WorkerServicer(serving_pb2_grpc.WorkerServicer):
    def __init__(self, worker: WorkerApi) -> None:
        self._worker = worker

    @contextmanager
    def _fenced(self, use: Use, target: pb.WorkerIdentity) -> Iterator[None]:
        """An address that was reused must refuse what was meant for its former owner.

        Whatever else is refused as stale inside is counted in the same way.
        """
        with self._worker.fences.watch(use):
            meant = codec.identity_from_pb(target)
            if meant != self._worker.identity:
                raise StaleReference(
                    f"meant for {meant}, this is {self._worker.identity}", StaleKind.INCARNATION
                )
            yield

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        with self._fenced(Use.SUBMIT, request.target):
            decode = codec.peer_from_pb(request.decode) if request.HasField("decode") else None
            await self._worker.submit(codec.assignment_from_pb(request.assignment), decode)
            return pb.SubmitReply()

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        with self._fenced(Use.ABORT, request.target):
            await self._worker.abort([codec.attempt_from_pb(item) for item in request.attempts])
            return pb.AbortReply()

    async def Frames(
        self, request: pb.FramesRequest, context: Context
    ) -> AsyncIterator[pb.StepFrame]:
        with self._fenced(Use.FRAMES, request.target):
            sequence = 0
            async for deltas in self._worker.frames(request.gateway_id):
                sequence += 1
                yield pb.StepFrame(sequence=sequence, deltas=deltas_to_pb(deltas))

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveReply:
        with self._fenced(Use.RESERVE, request.target):
            return codec.outcome_to_pb(
                await self._worker.reserve(codec.reservation_from_pb(request))
            )

    async def Announce(self, request: pb.AnnounceRequest, context: Context) -> pb.AnnounceReply:
        with self._fenced(Use.ANNOUNCE, request.target):
            await self._worker.announce(codec.announcement_from_pb(request))
            return pb.AnnounceReply()

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        with self._fenced(Use.CANCEL, request.target):
            await self._worker.cancel(
                codec.peer_from_pb(request.source),
                codec.attempt_from_pb(request.attempt),
                request.reason,
            )
            return pb.CancelReply()

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        with self._fenced(Use.RELEASE, request.target):
            verdict = await self._worker.release(codec.release_from_pb(request))
            return pb.ReleaseReply(held=verdict.held, reason=verdict.reason)

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        with self._fenced(Use.RENEW, request.target):
            holder = codec.identity_from_pb(request.holder)
            unknown = await self._worker.renew(holder, list(request.lease_ids))
            return pb.RenewReply(unknown_lease_ids=unknown)

    async def Rebind(self, request: pb.RebindRequest, context: Context) -> pb.RebindReply:
        with self._fenced(Use.REBIND, request.target):
            return rebind_report_to_pb(await self._worker.rebind(rebind_from_pb(request)))

    async def Migrate(self, request: pb.MigrateRequest, context: Context) -> pb.MigrateReply:
        with self._fenced(Use.MIGRATE, request.target):
            report = await self._worker.migrate(migration_from_pb(request))
            return migration_report_to_pb(report)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        with self._fenced(Use.DRAIN, request.target):
            await self._worker.drain(request.reason)
            return pb.DrainReply()

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.WorkerDescription:
        with self._fenced(Use.DESCRIBE, request.target):
            return codec.description_to_pb(await self._worker.describe())

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.WorkerStatus:
        return status_to_pb(await self._worker.status())

    async def Trace(self, request: pb.TraceRequest, context: Context) -> pb.TraceReply:
        with self._fenced(Use.TRACE, request.target):
            steps = await self._worker.trace(request.num_steps)
            return pb.TraceReply(steps=map(codec.step_to_pb, steps))
