"""A line a request, a line of rates, and none for probes."""

import asyncio
import logging
import re

import pytest
from tests.router.conftest import ENDED, Gateway, eventually

from segue.router import traffic_log
from segue.router.exchange import Exchange
from segue.router.traffic_log import TrafficLog

LOGGER = "segue.gateway"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_line_a_request(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    gateway.play(ENDED)
    headers = {"X-Request-Id": "mine"}
    body = {"prompt": "Hi", "stream": True}
    await gateway.client.post("/v1/completions", json=body, headers=headers)
    await gateway.complete(temperature=9)
    for path in ("/live", "/ready", "/metrics", "/v1/models"):
        await gateway.client.get(path)

    def told_lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == LOGGER]

    assert await eventually(lambda: len(told_lines()) >= 3)  # a moment behind the answer
    lines = told_lines()
    assert len(lines) == 3
    told = r"POST /v1/completions 200 0\.\d+ s \d+ \+ \d+ tokens id=mine"
    assert re.fullmatch(told, lines[0]), lines[0]
    assert lines[1].startswith("POST /v1/completions 400 validation ")
    assert lines[2].startswith("GET /v1/models 200 ")


@pytest.mark.asyncio(loop_scope="module")
async def test_metrics_have_no_lines_of_creation(gateway: Gateway) -> None:
    await gateway.complete()
    assert "_created" not in (await gateway.client.get("/metrics")).text


def exchange(prompt: int, output: int) -> Exchange:
    made = Exchange("r", "/v1/completions", status=200)
    made.num_prompt_tokens, made.num_output_tokens = prompt, output
    return made


def test_a_path_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    TrafficLog(True).ended("GET", "/x\n12:00 ERROR all is lost" + "y" * 1000, exchange(0, 0))
    (line,) = caplog.messages
    assert "\n" not in line and len(line) < 200


async def test_rates_are_told_while_there_is_traffic(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_log, "RATE_SECONDS", 0.05)
    caplog.set_level(logging.INFO, LOGGER)
    for is_on in (True, False):
        caplog.clear()
        log = TrafficLog(is_on)
        telling = asyncio.create_task(log.tell_rates())
        await asyncio.sleep(0.12)
        assert not caplog.messages
        log.ended("POST", "/live", exchange(30, 20))
        await asyncio.sleep(0.25)
        assert len([m for m in caplog.messages if "output tokens/s" in m]) == int(is_on)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
