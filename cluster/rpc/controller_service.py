"""Serves the controller over gRPC: registration, heartbeats and the fleet view."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc.aio

from segue.cluster.controller import Controller
from segue.cluster.errors import InvalidRequest
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc import serving_pb2_grpc as pb_grpc
from segue.cluster.rpc.codec import identity_from_pb, peer_to_pb
from segue.cluster.rpc.fleet_codec import fleet_to_pb, registration_from_pb, status_from_pb
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.rpc.server import RpcServer, start_server


class ControllerService(pb_grpc.ControllerServicer):
    """One heartbeat stream a worker; only the newest one's end means anything."""

    def __init__(self, controller: Controller, heartbeat_s: float) -> None:
        self._controller = controller
        self._heartbeat_s = heartbeat_s
        self._streams: dict[WorkerIdentity, Any] = {}

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        verdict = self._controller.register(registration_from_pb(request))
        return pb.RegisterReply(
            accepted=verdict.accepted, reason=verdict.reason, heartbeat_seconds=self._heartbeat_s
        )

    async def Heartbeats(
        self, request_iterator: AsyncIterator[pb.Heartbeat], context: Any
    ) -> AsyncIterator[pb.HeartbeatReply]:
        owner: WorkerIdentity | None = None
        async for beat in request_iterator:
            identity = identity_from_pb(beat.identity)
            if owner is None:
                owner = identity
                self._streams[identity] = context
                context.add_done_callback(partial(self._ended, identity))
            elif identity != owner:
                raise InvalidRequest(f"a heartbeat stream of {owner} named {identity}")
            known = self._controller.beat(identity, status_from_pb(beat.status))
            sources = self._controller.sources_for(identity)
            yield pb.HeartbeatReply(
                known=known,
                sources=map(peer_to_pb, sources.of_prompts),
                writers=map(peer_to_pb, sources.of_answers),
            )

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.FleetSnapshot]:
        async with aclosing(self._controller.watch()) as views:
            async for view in views:
                yield fleet_to_pb(view)

    def _ended(self, identity: WorkerIdentity, context: Any) -> None:
        """Called once the stream is over, however it ended."""
        if self._streams.get(identity) is context:
            del self._streams[identity]
            self._controller.disconnect(identity)


async def serve_controller(
    controller: Controller,
    *,
    token: str,
    host: str,
    heartbeat_s: float,
    port: int = 0,
    security: Security = TOKEN_ALONE,
) -> RpcServer:
    """Start the controller's gRPC server; port 0: one that the system chooses."""
    service = ControllerService(controller, heartbeat_s)

    def register(server: grpc.aio.Server) -> None:
        pb_grpc.add_ControllerServicer_to_server(service, server)

    return await start_server(
        token=token, host=host, register=register, port=port, security=security
    )
