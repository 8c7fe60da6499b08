"""A client that leaves stops its generation, streamed or not.

Within a second if its answer has begun; else it may only have ended its side of the connection,
and is asked after a moment whether it still reads.
"""

import asyncio
import socket
from pathlib import Path

import httpx
import orjson
import pytest
from tests.router.conftest import (
    UNHEARD_SECONDS,
    Gateway,
    Step,
    endless,
    eventually,
    gateway_config,
    serving,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def connect(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(gateway.url)
    return await asyncio.open_connection(url.host, url.port)


def post(path: str, **fields: object) -> bytes:
    body = orjson.dumps({"prompt": "Hi", "max_tokens": 2000, **fields})
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def cancelled(gateway: Gateway) -> float:
    return await gateway.metric('segue_requests_total{endpoint="/v1/completions",error_type="canc')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
async def test_hanging_up(gateway: Gateway, stream: bool, n: int) -> None:
    gateway.play(endless(28))
    before = await cancelled(gateway)
    reader, writer = await connect(gateway)
    writer.write(post("/v1/completions", stream=stream, n=n, temperature=1))
    assert await eventually(lambda: gateway.generator.num_yielded > 5)
    if stream:
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    assert await eventually(
        lambda: gateway.generator.num_running == 0, 1.0 if stream else UNHEARD_SECONDS
    )
    assert list(gateway.generator.ended.values()) == ["aborted"] * n
    for _ in range(50):
        if await cancelled(gateway) == before + 1:
            break
        await asyncio.sleep(0.01)
    assert await cancelled(gateway) == before + 1
    assert await gateway.metric("segue_inflight_requests") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token(gateway: Gateway, stream: bool) -> None:
    gateway.play(lambda request: [Step((28,), 60.0)])
    _, writer = await connect(gateway)
    writer.write(post("/v1/completions", stream=stream))
    assert await eventually(lambda: gateway.generator.num_running == 1)
    writer.transport.abort()
    assert await eventually(lambda: gateway.generator.num_running == 0, UNHEARD_SECONDS)


async def test_an_sdk_that_breaks_off_its_stream(gateway: Gateway) -> None:
    gateway.play(endless(28))
    body = {"prompt": "Hi", "stream": True, "max_tokens": 2000}
    async with gateway.client.stream("POST", "/v1/completions", json=body) as response:
        async for _ in response.aiter_lines():
            break
    assert await eventually(lambda: gateway.generator.num_running == 0)


async def test_leaving_within_the_body(gateway: Gateway) -> None:
    _, writer = await connect(gateway)
    writer.write(post("/v1/completions")[:-10])
    await asyncio.sleep(0.05)
    assert await gateway.metric("segue_inflight_requests") == 1
    writer.transport.abort()
    for _ in range(50):
        if await gateway.metric("segue_inflight_requests") == 0:
            break
        await asyncio.sleep(0.01)
    assert await gateway.metric("segue_inflight_requests") == 0
    assert gateway.generator.requests == []


async def test_a_client_that_does_not_read_stops_the_pumps_and_is_cut(
    bundled_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.router.gateway.WIND_UP_SECONDS", 0.2)
    config = gateway_config(admission={"request_timeout_s": 3.0})
    big = [Step((28,) * 500)] * 10**6
    async with serving(bundled_model, lambda request: big, config) as gateway:
        generator = gateway.generator
        url, loop = httpx.URL(gateway.url), asyncio.get_running_loop()
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await loop.sock_connect(raw, (url.host, url.port))
            ask = post("/v1/completions", stream=True, return_token_ids=True)
            await loop.sock_sendall(raw, ask)
            assert await eventually(lambda: generator.num_yielded > 0)
            seen = 0
            while seen != generator.num_yielded and generator.num_running:
                seen = generator.num_yielded  # until the socket's buffers are full
                await asyncio.sleep(0.2)
            assert generator.num_running == 1  # stalled, so nothing is piled up for the client
            assert await eventually(lambda: generator.num_running == 0, 4.0)


async def test_pipelined_requests_are_not_taken_for_a_hangup(gateway: Gateway) -> None:
    reader, writer = await connect(gateway)
    writer.write(post("/v1/completions") * 2)
    for _ in range(2):
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        await asyncio.wait_for(reader.readuntil(b'"system_fingerprint":null}'), 5)
    writer.close()
    assert list(gateway.generator.ended.values()) == ["exhausted"] * 2
