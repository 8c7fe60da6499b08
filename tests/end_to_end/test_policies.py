"""Every capacity policy on the real model in a pool so small that it hurts: same answers.

Pausing, eviction and the host tier really happen, which the counters show.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from local_fleet import Answer, LocalFleet, local_fleet

from segue.cluster.config.file import parse_config
from segue.cluster.request import SamplingParams

BLOCK = 16
BLOCK_BYTES = BLOCK * 30 * 2 * 3 * 64 * 4
NUM_REQUESTS = 5
NUM_TOKENS = 28


def config(**engine: Any) -> Any:
    pools = {"both": {"role": "both", "engine": {"block_size": BLOCK, **engine}}}
    return parse_config({"pools": pools, "model": {"max_model_len": 160}})


async def answers(fleet: LocalFleet) -> list[Answer]:
    """Prompts that share a beginning, greedy and seeded; all at once, then all once more."""
    generator = random.Random(5)
    shared = [generator.randrange(20, 49_000) for _ in range(2 * BLOCK)]
    prompts = [
        shared + [generator.randrange(20, 49_000) for _ in range(3 + 7 * index)]
        for index in range(NUM_REQUESTS)
    ]
    every: list[Answer] = []
    for _ in range(2):
        every += await asyncio.gather(
            *(
                fleet.ask(
                    prompt,
                    NUM_TOKENS,
                    sampling=SamplingParams(temperature=0.8 * (index % 2), seed=index),
                )
                for index, prompt in enumerate(prompts)
            )
        )
    return every


@pytest.fixture(scope="module")
def unconstrained(bundled_model: Path) -> list[list[int]]:
    async def run() -> list[list[int]]:
        async with local_fleet(config(), bundled_model) as fleet:
            return [answer.tokens for answer in await answers(fleet)]

    return asyncio.run(run())


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
async def test_answers_do_not_depend_on_the_policy(
    bundled_model: Path, unconstrained: list[list[int]], policy: str
) -> None:
    small = config(
        capacity_scheduler_policy=policy,
        num_kv_blocks=10,
        host_cache_bytes=6 * BLOCK_BYTES,
        max_num_seqs=4,
    )
    async with local_fleet(small, bundled_model) as fleet:
        constrained = [answer.tokens for answer in await answers(fleet)]
        (status,) = await fleet.settled()
    assert constrained == unconstrained
    counters = status.counters
    assert counters["kv_blocks_offloaded"] > 0 and counters["kv_blocks_onboarded"] > 0
    assert counters["kv_blocks_forgotten"] > 0, "the host tier overflowed too"
    assert (counters["pauses"] > 0) == (policy == "max_utilization")
