"""A server that stops: the port stays open, answers end or are told that they do not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.router.conftest import EOS, Gateway, Step, endless, eventually, saying, serving

STREAM = {"prompt": "x", "stream": True, "max_tokens": 1000}


async def stream_to_its_end(gateway: Gateway, begun: asyncio.Event) -> list[str]:
    """The payloads of a stream."""
    client = gateway.client
    async with client.stream("POST", "/v1/completions", json=STREAM) as answer:
        lines = []
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
                begun.set()
        return lines


async def begin(gateway: Gateway) -> asyncio.Task[list[str]]:
    begun = asyncio.Event()
    task = asyncio.create_task(stream_to_its_end(gateway, begun))
    async with asyncio.timeout(5):
        await begun.wait()
    return task


async def is_closed(gateway: Gateway) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            await client.get(f"{gateway.url}/live")
        except httpx.ConnectError:
            return True
    return False


async def test_what_is_under_way_ends_and_nothing_new_is_taken(bundled_model: Path) -> None:
    async with serving(bundled_model, saying(*[28] * 20, EOS, delay=0.05)) as gateway:
        streaming = await begin(gateway)
        gateway.server.stop()
        await asyncio.sleep(0)
        ready = await gateway.client.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "the gateway is stopping")
        assert (await gateway.client.get("/live")).status_code == 200
        refused = await gateway.complete()
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert "stopping" in refused.json()["error"]["message"]
        lines = await streaming
        assert lines[-1] == "[DONE]" and not any("error" in line for line in lines)
        assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "stop"
        async with asyncio.timeout(5):
            while not await is_closed(gateway):
                await asyncio.sleep(0.05)


def broken_off(lines: list[str]) -> bool:
    """The stream says that it is not whole."""
    error: dict[str, Any] = json.loads(lines[-2]).get("error", {})
    return lines[-1] == "[DONE]" and error.get("code") == 503


@pytest.mark.parametrize("twice", [False, True], ids=["short grace", "asked again"])
async def test_what_is_not_waited_for_is_told_so(bundled_model: Path, twice: bool) -> None:
    grace = 60.0 if twice else 0.5
    async with serving(bundled_model, endless(28), drain_timeout_s=grace) as gateway:
        streams = [await begin(gateway) for _ in range(3)]
        whole = asyncio.create_task(gateway.complete(max_tokens=1000))
        assert await eventually(lambda: gateway.generator.num_running == 4)
        gateway.server.stop()
        if twice:
            gateway.server.abandon()
        async with asyncio.timeout(10):
            for stream in streams:
                assert broken_off(await stream)
            answer = await whole
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert await eventually(lambda: gateway.generator.num_running == 0)


async def test_a_request_that_has_not_begun_is_told_too(bundled_model: Path) -> None:
    """It waits for its first token when the grace ends."""
    script = [Step((28,), 60.0)]
    async with serving(bundled_model, lambda request: script, drain_timeout_s=0.3) as gateway:
        waiting = [asyncio.create_task(gateway.complete(stream=stream)) for stream in (False, True)]
        assert await eventually(lambda: gateway.generator.num_running == 2)
        gateway.server.stop()
        async with asyncio.timeout(10):
            for task in waiting:
                assert (await task).status_code == 503


async def test_a_client_that_does_not_read_holds_up_nobody(bundled_model: Path) -> None:
    async with serving(bundled_model, endless(28), drain_timeout_s=0.3) as gateway:
        url = httpx.URL(gateway.url)
        _, writer = await asyncio.open_connection(url.host, url.port, limit=1)
        body = json.dumps(STREAM).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert await eventually(lambda: gateway.generator.num_running == 1, 5)
        gateway.server.stop()
        async with asyncio.timeout(12):
            while not await is_closed(gateway):
                await asyncio.sleep(0.05)
        writer.close()
