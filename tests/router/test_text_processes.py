"""Work that grows with a client's input: beside the event loop, with a limit that holds."""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from tests.router.conftest import CARD, eventually, serving
from text_rig import endless_model, standstill

from segue.cluster.errors import InvalidRequest, Unavailable
from segue.router import text_processes
from segue.router.text_model import TextSource
from segue.router.text_processes import TextProcesses

WIDE = dataclasses.replace(CARD, max_model_len=2**20)
SLOW = orjson.dumps({"prompt": "a slow text, " * 200_000})  # seconds of work


@asynccontextmanager
async def processes(folder: Path, number: int = 1) -> AsyncIterator[TextProcesses]:
    texts = TextProcesses(TextSource(folder, WIDE), number)
    await texts.start()
    try:
        yield texts
    finally:
        await texts.close()


def chat(*contents: Any) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": text} for text in contents]})


def children() -> set[int]:
    """The text processes of this one."""
    found = psutil.Process().children()
    return {child.pid for child in found if "segue.router.text_process" in child.cmdline()}


@pytest.mark.parametrize(
    ("job", "body", "told"),
    [
        ("completion", b'{"prompt":[' + b"1," * 4_000_000 + b"NaN]}", "not valid JSON"),
        ("completion", b'{"x":[' + b"[]," * 2_600_000 + b"0]}", "prompt must"),
        ("completion", SLOW, ""),
        ("tokenize", SLOW, ""),
        ("chat", chat([{"type": "text", "text": "x"}] * 230_000), "parts"),
        ("chat", chat("a slow text, " * 100_000), ""),
    ],
    ids=["not a number", "lists", "text", "tokenize", "parts", "chat"],
)
async def test_the_event_loop_goes_on(
    bundled_model: Path, job: str, body: bytes, told: str
) -> None:
    async with processes(bundled_model) as texts, standstill() as longest:
        if told:
            prepared = await texts.prepare(job, body)
            assert prepared.refusal is not None and told in prepared.refusal.message
        else:
            assert await texts.run(job, body)
    # Each of them holds the GIL for more than a second in all, and several for it in one piece.
    assert longest.seconds < 0.4


async def test_a_stream_goes_on_beside_large_bodies(bundled_model: Path) -> None:
    headers = {"Content-Type": "application/json"}
    async with serving(bundled_model, card=WIDE) as gateway, standstill() as longest:
        for path, body, status in (
            ("/v1/completions", b'{"prompt":[' + b"1," * 4_000_000 + b"NaN]}", 400),
            ("/tokenize", SLOW, 200),
            ("/v1/chat/completions", chat([{"type": "text", "text": "x"}] * 230_000), 400),
        ):
            answer = await gateway.client.post(path, content=body, headers=headers, timeout=60)
            assert answer.status_code == status, answer.text[:300]
    assert longest.seconds < 0.4


async def test_a_template_that_loops_is_ended_and_the_next_one_runs(
    bundled_model: Path, tmp_path: Path
) -> None:
    async with processes(endless_model(bundled_model, tmp_path)) as texts:
        before = children()
        prepared = await texts.prepare("chat", chat("loop"))
        assert prepared.refusal is not None and "too much time" in prepared.refusal.message
        prepared = await texts.prepare("chat", chat("memory"))
        assert prepared.refusal is not None and "too much room" in prepared.refusal.message
        assert (await texts.prepare("chat", chat("Hi"))).plan is not None
        assert children() == before  # without the price of another process


async def test_what_can_not_be_interrupted_is_killed(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_processes, "JOB_SECONDS", 0.5)
    async with processes(endless_model(bundled_model, tmp_path)) as texts:
        before = children()
        with pytest.raises(InvalidRequest, match="to prepare"):
            await texts.run("chat", chat("power"))
        monkeypatch.undo()
        assert (await texts.prepare("chat", chat("Hi"))).plan is not None
        assert not before & children()


async def test_a_job_that_nobody_waits_for_gives_its_process_back(
    bundled_model: Path, tmp_path: Path
) -> None:
    async with processes(endless_model(bundled_model, tmp_path)) as texts:
        running = asyncio.create_task(texts.run("chat", chat("power")))
        (pid,) = children()
        assert await eventually(lambda: psutil.Process(pid).cpu_times().user > 1, 10)
        waiting = asyncio.create_task(texts.run("chat", chat("loop")))
        await asyncio.sleep(0)
        waiting.cancel()
        running.cancel()
        began = time.monotonic()
        assert (await texts.prepare("chat", chat("Hi"))).plan is not None
        assert time.monotonic() - began < text_processes.JOB_SECONDS
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert running.cancelled() and waiting.cancelled()


async def test_large_bodies_leave_a_process_to_small_ones(bundled_model: Path) -> None:
    async with processes(bundled_model, 2) as texts:
        large = [asyncio.create_task(texts.run("tokenize", SLOW)) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(5):
            assert (await texts.prepare("chat", chat("Hi"))).plan is not None
        assert not any(task.done() for task in large)
        await asyncio.gather(*large)


async def test_a_dead_process_is_replaced(bundled_model: Path) -> None:
    async with processes(bundled_model) as texts:
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="died"):
            await texts.run("chat", chat("Hi"))
        assert (await texts.prepare("chat", chat("Hi"))).plan is not None
        # A signal to all processes of a service must not cost the answers that it has to finish.
        (other,) = children()
        os.kill(other, signal.SIGTERM)
        os.kill(other, signal.SIGINT)
        assert (await texts.prepare("chat", chat("Hi"))).plan is not None
    assert children() == set()


async def test_a_process_ends_with_its_gateway(bundled_model: Path) -> None:
    async with processes(bundled_model) as texts:
        (link,) = texts._links
        (pid,) = children()
        assert link._process.stdin is not None
        link._process.stdin.close()  # as when the gateway is killed
        assert await eventually(lambda: not psutil.pid_exists(pid), 10)
