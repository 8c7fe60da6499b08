"""Admission and body size: what is let in, and what the others are told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.router.conftest import (
    EOS,
    UNHEARD_SECONDS,
    Gateway,
    endless,
    eventually,
    gateway_config,
    saying,
    serving,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_gateway_refuses_and_recovers(bundled_model: Path, status: int) -> None:
    config = gateway_config(
        admission={"max_queued_requests": 2, "overload_status": status, "retry_after_s": 9}
    )
    async with serving(bundled_model, endless(28), config) as gateway:
        busy = [asyncio.create_task(gateway.complete(max_tokens=2000)) for _ in range(2)]
        assert await eventually(lambda: gateway.generator.num_running == 2)
        # Refused unread: this body would be a 400.
        response = await gateway.client.post("/v1/completions", content=b"{")
        assert response.status_code == status
        assert response.headers["retry-after"] == "9"
        error = response.json()["error"]
        assert "max_queued_requests" in error["message"] and error["code"] == status
        assert (await gateway.client.get("/v1/models")).status_code == 200
        assert await gateway.metric("segue_inflight_requests") == 2
        for task in busy:
            task.cancel()
        assert await eventually(lambda: gateway.generator.num_running == 0, UNHEARD_SECONDS)
        gateway.play(saying(EOS))
        assert (await gateway.complete()).status_code == 200
        labels = f'endpoint="/v1/completions",error_type="overload",status="{status}"'
        name = f"segue_requests_total{{{labels}"
        assert await gateway.metric(name) == 1


async def test_large_bodies(bundled_model: Path) -> None:
    config = gateway_config(admission={"max_body_bytes": 2048})
    async with serving(bundled_model, config=config) as gateway:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 1000

        headers = {"Content-Type": "application/json"}
        for content in (b" " * 100_000, chunks()):  # declared and undeclared length
            response = await gateway.client.post(
                "/v1/completions", content=content, headers=headers
            )
            assert response.status_code == 413
            assert "2048 bytes" in response.json()["error"]["message"]
        assert (await gateway.complete()).status_code == 200


async def test_a_slot_is_given_back_however_a_request_ends(gateway: Gateway) -> None:
    gateway.play(saying(EOS))
    for fields in ({}, {"n": 0}, {"stream": True}, {"model": "x"}):
        await gateway.complete(**fields)
    assert await gateway.metric("segue_inflight_requests") == 0
