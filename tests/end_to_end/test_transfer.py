"""NIXL is really used: bytes counted by the transport are the KV of the prompts, and overlap."""

import random

import httpx
import pytest
from deployment import Deployment

BLOCK = 16


def ask(deployment: Deployment, prompt: list[int]) -> None:
    body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
    response = httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text


def counters(deployment: Deployment) -> dict[str, float]:
    found: dict[str, float] = deployment.settled()["decode"]["counters"]
    return found


def fresh_prompt(length: int) -> list[int]:
    generator = random.SystemRandom()
    return [generator.randrange(20, 49_000) for _ in range(length)]


def test_bytes_moved_equal_the_kv_size_of_the_prompts(apart: Deployment) -> None:
    decode = apart.settled()["decode"]
    assert decode["transport"].startswith("nixl")
    block_bytes = decode["gauges"]["kv_block_bytes"]
    assert (
        block_bytes == BLOCK * 30 * 2 * 3 * 64 * 4
    )  # tokens, layers, k and v, heads, dim, float32
    before = counters(apart)["kv_bytes_read"]
    lengths = (1, 15, 16, 17, 100, 321)
    for length in lengths:
        ask(apart, fresh_prompt(length))
    moved = counters(apart)["kv_bytes_read"] - before
    assert moved == sum(-(-length // BLOCK) for length in lengths) * block_bytes
    samples = apart.metrics()
    (shown,) = (
        value
        for name, value in samples.items()
        if name.startswith("segue_kv_transfer_bytes_total") and 'role="decode"' in name
    )
    assert shown == counters(apart)["kv_bytes_read"]


def test_the_pair_was_measured_before_it_was_used(apart: Deployment) -> None:
    apart.settled()
    (pair,) = apart.status()["pairs"]
    assert (pair["source"], pair["reader"], pair["refusal"]) == ("prefill-0", "decode-0", "")
    assert pair["transport"] in ("shm", "tcp") and pair["measured"] and pair["detail"]
    (shown,) = (
        value
        for name, value in apart.metrics().items()
        if name.startswith("segue_kv_pair_bytes_per_second")
    )
    assert shown / 1e9 == pytest.approx(pair["gigabytes_per_second"], abs=0.001)


def test_blocks_that_the_target_caches_are_not_moved_again(apart: Deployment) -> None:
    prompt = fresh_prompt(100)
    ask(apart, prompt)
    before = counters(apart)["kv_bytes_read"]
    ask(apart, prompt)
    block_bytes = apart.settled()["decode"]["gauges"]["kv_block_bytes"]
    assert counters(apart)["kv_bytes_read"] - before == block_bytes  # the last, partial block


def test_most_bytes_have_moved_before_the_last_chunk_is_computed(apart: Deployment) -> None:
    before = counters(apart)
    ask(apart, fresh_prompt(1000))
    after = counters(apart)
    announced = after["kv_bytes_announced"] - before["kv_bytes_announced"]
    overlapped = after["kv_bytes_overlapped"] - before["kv_bytes_overlapped"]
    assert announced == after["kv_bytes_read"] - before["kv_bytes_read"]
    assert overlapped / announced >= 0.8
