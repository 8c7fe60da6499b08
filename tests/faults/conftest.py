"""One real fleet a module: worker processes, NIXL, the bundled model; no Ray, no HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from local_fleet import LocalFleet, local_fleet

from segue.cluster.config.file import parse_config

# Without the prefix cache every attempt computes, and moves, the whole prompt.
ENGINE = {"enable_prefix_caching": False, "chunk_size": 64, "num_kv_blocks": 256}
CONFIG = {
    "pools": {
        "prefill": {"role": "prefill", "engine": ENGINE},
        "decode": {"role": "decode", "engine": ENGINE},
    },
    # A stopped worker is cut off by its links long before the controller replaces it.
    "control": {"dead_after_s": 40},
    "gateway": {"recovery": {"worker_wait_s": 60}, "admission": {"request_timeout_s": 90}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bundled_model: Path) -> AsyncIterator[LocalFleet]:
    async with local_fleet(parse_config(CONFIG), bundled_model) as started:
        yield started
