"""What a connection may take before, and after, the application has a say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from tests.router.conftest import ENDED, Gateway

from segue.router.http_protocol import MAX_HEAD_BYTES, BoundedHttpProtocol
from segue.router.listener import open_listener

LIVE = b"GET /live HTTP/1.1\r\nHost: x\r\n"


class Hasty(BoundedHttpProtocol):
    head_seconds = 0.3
    drain_seconds = 0.3


async def answer_unread(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connection(
    protocol: type[asyncio.Protocol] = BoundedHttpProtocol,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with open_listener("127.0.0.1", 0) as listener:
        config = uvicorn.Config(answer_unread, http=protocol, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        yield reader, writer
        writer.close()
        server.should_exit = True
        await task


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that still comes, to the end of the connection."""
    async with asyncio.timeout(5):
        return await reader.read()


async def test_an_endless_head_is_refused_before_it_ends() -> None:
    async with connection() as (_, writer):
        writer.write(LIVE)
        with pytest.raises(ConnectionError):
            for number in range(64 * MAX_HEAD_BYTES // 1000):
                writer.write(b"X-%d: %b\r\n" % (number, b"y" * 1000))
                await writer.drain()
                await asyncio.sleep(0)


async def test_a_head_just_too_large_is_told_so() -> None:
    async with connection() as (reader, writer):
        writer.write(LIVE)
        await asyncio.sleep(0.1)  # so that the rest is a read of its own
        writer.write(b"X: " + b"y" * MAX_HEAD_BYTES)
        assert (await rest(reader)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("start", [b"", b"GET /live HT", LIVE + b"X: y"])
async def test_a_head_that_does_not_end_in_time_is_not_waited_for(start: bytes) -> None:
    async with connection(Hasty) as (reader, writer):
        writer.write(start)
        assert await rest(reader) == b""


async def test_the_second_head_of_a_connection_has_a_deadline_too() -> None:
    async with connection(Hasty) as (reader, writer):
        for _ in range(3):  # in all longer than one head may take
            await asyncio.sleep(0.15)
            writer.write(LIVE + b"\r\n")
            async with asyncio.timeout(5):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET /live")
        assert await rest(reader) == b""


async def test_a_body_nobody_reads_is_not_drained_for_ever() -> None:
    async with connection(Hasty) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        async with asyncio.timeout(5):
            await reader.readuntil(b"ok")
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(b"z" * 1000)
                    await writer.drain()
                    await asyncio.sleep(0.01)


async def test_a_body_that_ends_after_its_answer_leaves_the_connection_usable() -> None:
    async with connection(Hasty) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        async with asyncio.timeout(5):
            await reader.readuntil(b"ok")
            writer.write(b"zzzz")
            await asyncio.sleep(0.5)
            writer.write(LIVE + b"\r\n")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")


async def test_pipelined_requests_behind_a_large_body_are_answered() -> None:
    async with connection() as (reader, writer):
        body = b"z" * (4 * MAX_HEAD_BYTES)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body + LIVE)
        await asyncio.sleep(0.1)
        writer.write(b"X: y\r\n\r\n")
        async with asyncio.timeout(5):
            for _ in range(2):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_whole_head_that_is_too_large_is_refused_in_form(gateway: Gateway) -> None:
    gateway.play(ENDED)
    response = await gateway.client.get("/live", headers={"X": "y" * (MAX_HEAD_BYTES - 200)})
    assert response.status_code == 200
    response = await gateway.client.get("/live", headers={"X": "y" * (MAX_HEAD_BYTES + 1)})
    assert response.status_code == 431
    if response.headers["content-type"] == "application/json":  # it came in one read
        assert response.json()["error"]["code"] == 431
