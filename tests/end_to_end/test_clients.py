"""What users do: the openai client, and clients that leave whenever they like."""

import asyncio
import random
import re
import time
from collections import Counter

import httpx
import psutil
import pytest
from deployment import Deployment
from openai import AsyncOpenAI, BadRequestError, NotFoundError

MODEL = "smollm2-135m"


def openai_of(deployment: Deployment) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120)


async def test_a_chat_streams_paris(apart: Deployment) -> None:
    async with openai_of(apart) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "Paris" in "".join(pieces)
    assert len([piece for piece in pieces if piece]) > 3, "it came token by token"


async def test_the_bundled_model_knows_paris_at_its_default_settings(apart: Deployment) -> None:
    """Sampled at temperature 1 it writes gibberish, which is what its users would see first."""
    async with openai_of(apart) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "What is the capital of France?"}],
                    max_tokens=24,
                    seed=seed,
                )
                for seed in range(8)
            )
        )
    texts = [answer.choices[0].message.content or "" for answer in answers]
    assert sum("Paris" in text for text in texts) >= 4, texts


async def test_models_and_errors_as_the_client_knows_them(apart: Deployment) -> None:
    async with openai_of(apart) as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(NotFoundError):
            await client.completions.create(model="other", prompt="x")
        with pytest.raises(BadRequestError) as caught:
            await client.completions.create(model=MODEL, prompt="x", temperature=9)
        assert caught.value.param == "temperature"


@pytest.mark.timeout(290)
async def test_200_requests_a_third_of_which_hang_up(apart: Deployment) -> None:
    """Afterwards nothing is held anywhere and the outcomes add up."""
    generator = random.Random(99)
    slots = asyncio.Semaphore(32)
    before = requests_ended(apart)
    outcomes = {"answered": 0, "left": 0}

    async def one(client: httpx.AsyncClient, index: int) -> None:
        body = {
            "model": MODEL,
            "prompt": [generator.randrange(20, 49_000) for _ in range(generator.randrange(1, 60))],
            "max_tokens": generator.randrange(1, 12),
            "ignore_eos": True,
            "stream": bool(index % 2),
        }
        patience = generator.uniform(0.0, 3.0) if index % 3 == 0 else 200.0
        async with slots:
            try:
                async with asyncio.timeout(patience):
                    response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                outcomes["answered"] += 1
            except TimeoutError:
                outcomes["left"] += 1

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=apart.url, timeout=250, limits=limits) as client:
        await asyncio.gather(*(one(client, index) for index in range(200)))
    assert outcomes["answered"] + outcomes["left"] == 200
    assert outcomes["left"] > 20, "some really left"
    await asyncio.to_thread(apart.settled)
    # One that left before its request had arrived was never here, so never counted.
    ended = Counter(requests_ended(apart))
    ended.subtract(before)
    assert {status for status, count in ended.items() if count} <= {"200", "499"}
    assert outcomes["answered"] <= ended["200"] <= outcomes["answered"] + outcomes["left"]
    assert ended["499"] + ended["200"] <= 200
    assert ended["499"] > 20
    inflight = [v for k, v in apart.metrics().items() if k.startswith("segue_inflight_requests")]
    assert sum(inflight) == 0


def requests_ended(deployment: Deployment) -> dict[str, float]:
    """Completions by the status they ended with."""
    pattern = re.compile(r'segue_requests_total\{.*"/v1/completions".*status="(\d+)".*\}')
    found: dict[str, float] = {}
    for name, value in deployment.metrics().items():
        if match := pattern.match(name):
            found[match.group(1)] = found.get(match.group(1), 0.0) + value
    return found


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_hangup_ends_the_work_on_both_workers_at_once(
    apart: Deployment, streaming: bool
) -> None:
    body = {
        "model": MODEL,
        "prompt": "Count: one two three",
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": streaming,
    }
    async with httpx.AsyncClient(base_url=apart.url, timeout=30) as client:
        request = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.sleep(1.5)
        assert any(w["gauges"]["running_requests"] for w in apart.workers().values())
        request.cancel()
        left = time.monotonic()
        await asyncio.gather(request, return_exceptions=True)
    await asyncio.to_thread(apart.settled, 5.0)
    assert time.monotonic() - left < 5.0


def share_of_a_core(processes: list[psutil.Process], seconds: float) -> float:
    began, before = time.monotonic(), [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(seconds)
    used = sum(sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True))
    return used / (time.monotonic() - began)


def test_idle_processes_hardly_use_the_cpu_and_memory_is_bounded(apart: Deployment) -> None:
    """No busy polling, and no more memory than weights, buffers and the KV-cache."""
    workers = apart.settled()
    pids = [int(worker["pid"]) for worker in workers.values()]
    processes = [psutil.Process(pid) for pid in (*pids, apart.process.pid)]
    shares: list[float] = []
    while len(shares) < 4 and min(shares, default=1.0) >= 0.05:
        shares.append(share_of_a_core(processes, 5.0))  # what else the machine does only adds
    assert min(shares) < 0.05
    for worker in workers.values():
        gauges = worker["gauges"]
        touched = gauges["kv_blocks_total"] * gauges["kv_block_bytes"]
        assert touched == 2 * 2**30 // gauges["kv_block_bytes"] * gauges["kv_block_bytes"]
        resident = psutil.Process(int(worker["pid"])).memory_info().rss
        assert resident < 1.5e9 + touched
