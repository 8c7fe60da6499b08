"""FP8 keys and values through the whole: prefill and decode apart answer as one worker does.

Groups of layers travel while the end of a prompt is computed, so the whole also shows that.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from local_fleet import LocalFleet, local_fleet

from segue.cluster.config.file import parse_config
from segue.cluster.request import SamplingParams

ENGINE = {"kv_cache_dtype": "fp8_e4m3", "kv_cache_bytes": 128 * 2**20}
BLOCK_BYTES = 30 * 2 * 3 * 16 * (64 + 4)  # layers, k and v, heads, slots, codes and a scale
LENGTHS = (1, 16, 17, 140, 300)


def pools(*roles: str) -> dict[str, Any]:
    each = {role: {"role": role, "engine": ENGINE} for role in roles}
    return {"pools": each, "transfer": {"layer_groups": 4}}


async def answers(fleet: LocalFleet) -> list[list[int]]:
    generator = random.Random(8)
    found = []
    for length in LENGTHS:
        prompt = [generator.randrange(20, 49_000) for _ in range(length)]
        for sampling in (None, SamplingParams(temperature=0.9, seed=length)):
            answer = await fleet.ask(prompt, 10, sampling=sampling)
            found.append(answer.tokens)
    return found


@pytest.mark.timeout(240)
async def test_apart_equals_together_and_moves_a_quarter_of_the_bytes(bundled_model: Path) -> None:
    async with local_fleet(parse_config(pools("both")), bundled_model) as fleet:
        together = await answers(fleet)
    async with local_fleet(parse_config(pools("prefill", "decode")), bundled_model) as fleet:
        apart = await answers(fleet)
        statuses = {status.role: status for status in await fleet.settled()}
    assert apart == together
    assert all(len(tokens) == 10 for tokens in apart)
    for status in statuses.values():
        assert status.gauges["kv_block_bytes"] == BLOCK_BYTES
        assert status.gauges["kv_blocks_total"] == 128 * 2**20 // BLOCK_BYTES
    # Each prompt is asked twice; the second time its whole blocks are cached.
    blocks = sum(-(-n // 16) + -(-n // 16) - (n - 1) // 16 for n in LENGTHS)
    assert statuses["decode"].counters["kv_bytes_read"] == blocks * BLOCK_BYTES
