"""The server end of every internal connection: asks for the cluster token, types errors."""

from __future__ import annotations  # grpc classes are generic in their stubs only

import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from segue.cluster.errors import InternalError, SegueError, Unavailable
from segue.cluster.rpc.channel import COMMON_OPTIONS, TOKEN_KEY
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.rpc.status import to_status

logger = logging.getLogger(__name__)

MAX_CONCURRENT_CALLS = 4096
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *COMMON_OPTIONS,
    # Permit the clients' keepalive (channel.py), which is denser than gRPC's default allows.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # two servers never share a port by accident
)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]]"


@dataclass(slots=True)
class RpcServer:
    """A server that is running."""

    address: str  # host:port
    _server: grpc.aio.Server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new calls; end the running ones after `grace_s` seconds."""
        await self._server.stop(grace_s)


async def start_server(
    *,
    token: str,
    host: str,
    register: Callable[[grpc.aio.Server], None],
    port: int = 0,
    security: Security = TOKEN_ALONE,
) -> RpcServer:
    """Serve what `register` adds on `host`; port 0: one that the system chooses.

    Raises ConfigurationError if `security` is not enough for that host."""
    security.check_host(host)
    if not token:
        raise InternalError("an empty cluster token would let everybody in")
    server = grpc.aio.server(
        interceptors=[TokenCheck(token), ErrorBarrier()],
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
    )
    register(server)
    name = f"[{host}]" if ":" in host else host
    try:
        bound = (
            server.add_insecure_port(f"{name}:{port}")
            if security.tls is None
            else server.add_secure_port(f"{name}:{port}", security.tls.server_credentials())
        )
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {name}:{port}: {error}") from error
    await server.start()
    return RpcServer(f"{name}:{bound}", server)


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses any call, known method or not, that does not carry the cluster token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # Stream-stream for every kind of method: it refuses before a request was even read.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MethodHandler:
        given = b""
        for key, value in handler_call_details.invocation_metadata:
            if key == TOKEN_KEY:
                given = value if isinstance(value, bytes) else value.encode()
        if hmac.compare_digest(given, self._token):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(requests: AsyncIterator[Any], context: Context) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the cluster token is missing or wrong")


class ErrorBarrier(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Ends a call whose method raised with the error's own status; logs what nobody expected."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MethodHandler:
        handler = await continuation(handler_call_details)
        if handler is None:  # unknown method: gRPC answers UNIMPLEMENTED
            return handler
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(_barred_stream(handler.stream_stream or handler.unary_stream), *coders)
        make = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(_barred_unary(handler.stream_unary or handler.unary_unary), *coders)


def _barred_unary(method: Any) -> Any:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await method(request, context)
        except Exception as error:
            await _abort(context, error)

    return call


def _barred_stream(method: Any) -> Any:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(request, context)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:
            await _abort(context, error)

    return call


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, SegueError):
        logger.error("a call from %s failed", context.peer(), exc_info=error)
        error = InternalError(f"{type(error).__name__}: {error}")
    status = to_status(error)
    await context.abort(status.code, status.details, status.trailing_metadata)
