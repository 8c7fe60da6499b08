"""The oracles on the real model: apart == together, streamed == not, alone == in company."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
from deployment import Deployment

BLOCK = 16
BOUNDARIES = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK)
LENGTHS = (*BOUNDARIES, 2, 20, 47, 64, 90, 127, 128, 129, 200, 255, 300, 500, 777, 1000, 1500)
GREEDY: dict[str, Any] = {"temperature": 0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 4711}
MODEL = "smollm2-135m"


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = random.Random(length * 1000 + seed)
    return [generator.randrange(20, 49_000) for _ in range(length)]


def body_of(prompt: list[int] | str, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


async def complete(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The answer without what differs between any two answers."""
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    del answer["id"], answer["created"]
    return answer


async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """A stream put together to the form of a plain answer."""
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks: list[dict[str, Any]] = []
    done = False
    async with client.stream("POST", "/v1/completions", json=request) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                assert not done
                chunks.append(json.loads(line.removeprefix("data: ")))
    assert done and not any("error" in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    return {
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": [t for choice in choices for t in choice.get("token_ids") or []],
        "finish_reason": choices[-1]["finish_reason"],
        "usage": chunks[-1]["usage"],
    }


def client_of(deployment: Deployment) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=deployment.url, timeout=240)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_apart_equals_together_token_for_token(
    apart: Deployment, together: Deployment, sampling: dict[str, Any]
) -> None:
    """20 prompts from 1 to 1,500 tokens, block boundaries included, field by field.

    The first kind of sampling moves every prompt, the second finds most of it in the caches.
    """
    async with client_of(apart) as one, client_of(together) as other:
        for length in LENGTHS:
            body = body_of(prompt_of(length), 10, **sampling)
            ours, theirs = await asyncio.gather(complete(one, body), complete(other, body))
            assert ours == theirs, f"prompt of {length} tokens"
            assert len(ours["choices"][0]["token_ids"]) == 10


async def test_a_second_time_hits_the_caches_and_says_the_same(apart: Deployment) -> None:
    async with client_of(apart) as client:
        for length in (*BOUNDARIES, 100):
            body = body_of(prompt_of(length, 5), 8, **SEEDED)
            first, second = await complete(client, body), await complete(client, body)
            assert first["choices"] == second["choices"]
            details = second["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == length - 1


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_streamed_equals_not_streamed(apart: Deployment, sampling: dict[str, Any]) -> None:
    async with client_of(apart) as client:
        for prompt in (
            "Write one line of emoji and Chinese: 😀🎉你好",
            "def main():\n",
            [5, 900, 33],
        ):
            for more in ({}, {"stop": ["a", " the"]}, {"max_tokens": 1}):
                body = body_of(prompt, 16, **sampling) | more
                plain, streamed = await complete(client, body), await stream(client, body)
                (choice,) = plain["choices"]
                assert streamed["text"] == choice["text"]
                assert streamed["token_ids"] == choice["token_ids"]
                assert streamed["finish_reason"] == choice["finish_reason"]
                assert streamed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


@pytest.mark.timeout(280)
async def test_alone_equals_in_company(apart: Deployment) -> None:
    """16 requests of all sizes and kinds at once, each equal to its run alone."""
    bodies = [
        body_of(
            prompt_of(5 + 9 * index, 8), 12, **(SEEDED | {"seed": index} if index % 2 else GREEDY)
        )
        for index in range(16)
    ]
    async with client_of(apart) as client:
        company = await asyncio.gather(*(complete(client, body) for body in bodies))
        for body, in_company in zip(bodies, company, strict=True):
            alone = await complete(client, body)
            assert alone["choices"] == in_company["choices"]


async def test_equal_seeds_give_equal_answers_and_other_seeds_others(apart: Deployment) -> None:
    async with client_of(apart) as client:
        answers = [
            (await complete(client, body_of("Once upon", 16, temperature=1.0, seed=seed)))[
                "choices"
            ]
            for seed in (1, 1, 2)
        ]
    assert answers[0] == answers[1] != answers[2]


BAD_BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": [49_152]},
    {"prompt": [-1]},
    {"prompt": [1] * 9000},
    {"prompt": "x", "max_tokens": 0},
    {"prompt": "x", "max_tokens": 100_000},
    {"prompt": "x", "max_tokens": "many"},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "temperature": 3},
    {"prompt": "x", "top_p": 0},
    {"prompt": "x", "top_k": -2},
    {"prompt": "x", "min_p": 2},
    {"prompt": "x", "n": 0},
    {"prompt": "x", "n": 100_000},
    {"prompt": "x", "stop": [""]},
    {"prompt": "x", "stop": ["a"] * 1000},
    {"prompt": "x", "seed": 2**70},
    {"prompt": "x", "logprobs": 3},
    {"prompt": "x", "logit_bias": {"5": 3}},
    {"prompt": "x", "presence_penalty": 1.5},
    {"prompt": "x", "stream_options": {"include_usage": True}},
    {"prompt": "x", "min_tokens": 9, "max_tokens": 3},
    {"prompt": "x", "cache_salt": "a/b"},
    {"prompt": "x", "stop_token_ids": [10**9]},
    {"prompt": {"a": 1}},
    {"prompt": "x", "model": "no-such-model"},
    {"prompt": "x", "response_format": {"type": "json_object"}},
    {"prompt": "x", "echo": True},
    {"prompt": "x", "best_of": 5},
)


async def test_a_good_stream_is_unharmed_beside_30_bad_requests(apart: Deployment) -> None:
    pids = {role: worker["pid"] for role, worker in apart.workers().items()}
    body = body_of("The quick brown fox", 60, **GREEDY)
    async with client_of(apart) as client:
        undisturbed = await stream(client, body)
        good = asyncio.create_task(stream(client, body))
        assert len(BAD_BODIES) >= 30
        for bad in BAD_BODIES:
            response = await client.post("/v1/completions", json={"model": MODEL, **bad})
            assert response.status_code in (400, 404), (bad, response.text)
            assert response.json()["error"]["message"]
        disturbed = await good
    for answer in (undisturbed, disturbed):
        del answer["usage"]["prompt_tokens_details"]
    assert disturbed == undisturbed
    assert {role: worker["pid"] for role, worker in apart.workers().items()} == pids


def test_pools_balance_after_everything(apart: Deployment, together: Deployment) -> None:
    for deployment in (apart, together):
        deployment.settled()
