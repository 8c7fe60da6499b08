"""Connections between processes: the token, deadlines, errors and streams, on real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from segue.cluster.errors import (
    AttemptFailed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    FailureKind,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    SegueError,
    StaleKind,
    StaleReference,
    TransferError,
    Unavailable,
)
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc import serving_pb2_grpc as pb_grpc
from segue.cluster.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from segue.cluster.rpc.server import RpcServer, start_server

METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


class EveryMethod(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers any method there is; `calls` counts what got past the interceptors."""

    def __init__(self) -> None:
        self.calls = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(requests: Any, context: Any) -> AsyncIterator[bytes]:
            self.calls += 1
            yield b""

        return grpc.stream_stream_rpc_method_handler(answer)


class Failing(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Submit raises `error`; Frames does after one frame; anything else never answers."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        if method == "Frames":
            return grpc.unary_stream_rpc_method_handler(
                self.frames, pb.FramesRequest.FromString, pb.StepFrame.SerializeToString
            )
        return grpc.unary_unary_rpc_method_handler(
            self.submit if method == "Submit" else self.hang,
            pb.SubmitRequest.FromString,
            pb.SubmitReply.SerializeToString,
        )

    async def submit(self, request: pb.SubmitRequest, context: Any) -> pb.SubmitReply:
        raise self.error

    async def hang(self, request: pb.SubmitRequest, context: Any) -> pb.SubmitReply:
        await asyncio.sleep(60)
        return pb.SubmitReply()

    async def frames(self, request: pb.FramesRequest, context: Any) -> AsyncIterator[pb.StepFrame]:
        yield pb.StepFrame(sequence=1)
        if isinstance(self.error, TimeoutError):
            await asyncio.sleep(60)
        raise self.error


async def serve(handler: grpc.GenericRpcHandler[Any, Any]) -> RpcServer:
    return await start_server(
        token="right",
        host="127.0.0.1",
        register=lambda server: server.add_generic_rpc_handlers((handler,)),
    )


async def test_every_method_of_every_service_asks_for_the_token() -> None:
    assert len(METHODS) >= 13
    handler = EveryMethod()
    server = await serve(handler)
    channel = grpc.aio.insecure_channel(server.address)
    for method in [*METHODS, "/segue.v1.Worker/Unknown"]:
        unary = channel.unary_unary(method, lambda data: data, lambda data: data)
        stream = channel.stream_stream(method, lambda data: data, lambda data: data)
        for metadata in [None, (("segue-token", "wrong"),), (("segue-token", ""),)]:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await unary(b"", timeout=5, metadata=metadata)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
            # Refused while it still sends, a stream's client may report INTERNAL instead.
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(stream(iter([b""]), timeout=5, metadata=metadata)))
    assert handler.calls == 0
    admitted = channel.unary_unary(METHODS[0], lambda data: data, lambda data: data)
    await admitted(b"", timeout=5, metadata=(("segue-token", "right"),))
    assert handler.calls == 1
    await channel.close(None)
    await server.stop()


async def test_empty_token_is_not_accepted_by_the_server_itself() -> None:
    with pytest.raises(InternalError):
        await start_server(token="", host="127.0.0.1", register=lambda server: None)


@pytest.mark.parametrize(
    "error",
    [
        StaleReference("old incarnation", StaleKind.INCARNATION),
        StaleReference("another one's", StaleKind.OWNER),
        InvalidRequest("bad temperature", param="temperature"),
        ConfigurationError("bad file"),
        ModelNotFound("no such model"),
        Overloaded("full", retry_after_seconds=7),
        Unavailable("nobody", retry_after_seconds=9),
        DeadlineExceeded("late"),
        TransferError("checksum of block 3"),
        AttemptFailed(FailureKind.FENCED, "lease gone"),
        AttemptFailed(FailureKind.REFUSED, "can never fit: ümlaut", retryable=False),
        InternalError("x" * 1500),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_errors_keep_type_and_fields(error: SegueError) -> None:
    server = await serve(Failing(error))
    channel = open_channel(server.address, "right")
    stub = pb_grpc.WorkerStub(channel.raw)
    frames = channel.stream(stub.Frames, pb.FramesRequest(), silence_s=5)
    assert (await anext(frames)).sequence == 1
    with pytest.raises(SegueError) as streamed:
        await anext(frames)
    with pytest.raises(SegueError) as told:
        await channel.unary(stub.Submit, pb.SubmitRequest(), deadline_s=5)
    for raised in (told.value, streamed.value):
        assert type(raised) is type(error)
        assert vars(raised) == vars(error)
        assert str(raised) == str(error)
    await channel.close()
    await server.stop()


async def test_unexpected_exception_is_told_without_its_traceback() -> None:
    server = await serve(Failing(KeyError("secret")))
    channel = open_channel(server.address, "right")
    stub = pb_grpc.WorkerStub(channel.raw)
    with pytest.raises(InternalError, match="KeyError"):
        await channel.unary(stub.Submit, pb.SubmitRequest(), deadline_s=5)
    await channel.close()
    await server.stop()


async def test_closing_a_channel_cancels_its_calls_but_nobody_who_waits_for_one() -> None:
    """Who waited would end as if it had been cancelled itself, and tell nobody."""
    server = await serve(Failing(TimeoutError()))
    channel = open_channel(server.address, "right")
    stub = pb_grpc.WorkerStub(channel.raw)
    frames = channel.stream(stub.Frames, pb.FramesRequest(), silence_s=None)
    assert (await anext(frames)).sequence == 1
    waiting = [
        asyncio.ensure_future(channel.unary(stub.Abort, pb.AbortRequest(), deadline_s=20)),
        asyncio.ensure_future(anext(frames)),
    ]
    await asyncio.sleep(0.2)
    await channel.close()
    for call in waiting:
        with pytest.raises(ConnectionLost):
            await call
    with pytest.raises(ConnectionLost):
        await channel.unary(stub.Abort, pb.AbortRequest(), deadline_s=5)
    await server.stop()


async def test_a_caller_that_is_cancelled_is() -> None:
    server = await serve(Failing(TimeoutError()))
    channel = open_channel(server.address, "right")
    stub = pb_grpc.WorkerStub(channel.raw)
    call = asyncio.ensure_future(channel.unary(stub.Abort, pb.AbortRequest(), deadline_s=20))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await channel.close()
    await server.stop()


async def test_calls_and_silent_streams_end_at_their_deadline() -> None:
    server = await serve(Failing(TimeoutError()))
    channel = open_channel(server.address, "right")
    stub = pb_grpc.WorkerStub(channel.raw)
    with pytest.raises(DeadlineExceeded):
        await channel.unary(stub.Abort, pb.AbortRequest(), deadline_s=0.2)
    frames = channel.stream(stub.Frames, pb.FramesRequest(), silence_s=0.2)
    await anext(frames)
    with pytest.raises(DeadlineExceeded):
        await anext(frames)
    await channel.close()
    await server.stop()


async def test_nobody_listening_is_unavailable_at_once() -> None:
    server = await serve(EveryMethod())
    await server.stop()
    channel = open_channel(server.address, "right")
    began = time.monotonic()
    with pytest.raises(Unavailable):
        stub = pb_grpc.WorkerStub(channel.raw)
        await channel.unary(stub.Submit, pb.SubmitRequest(), deadline_s=10)
    assert time.monotonic() - began < 5
    await channel.close()


async def test_message_over_the_limit_is_refused() -> None:
    server = await serve(Failing(InternalError("not reached")))
    channel = open_channel(server.address, "right")
    stub = pb_grpc.WorkerStub(channel.raw)
    request = pb.SubmitRequest(target=pb.WorkerIdentity(worker_id="x" * (MAX_MESSAGE_BYTES + 1)))
    with pytest.raises(InternalError, match="RESOURCE_EXHAUSTED"):
        await channel.unary(stub.Submit, request, deadline_s=10)
    await channel.close()
    await server.stop()
