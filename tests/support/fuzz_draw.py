"""What the fuzzer draws from its seed: deployments with every feature on, and requests to them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from answer_stream import MODEL_ID
from fault_fleet import token_ids

from segue.cluster.request import SamplingParams
from segue.router.request_plan import sample_seed

BLOCK_SIZE = 16
# (16 slots) x (2 layers) x (keys, values) x (3 heads) x (64) x (4 bytes)
SHALLOW_BLOCK_BYTES = BLOCK_SIZE * 2 * 2 * 3 * 64 * 4
NUM_STEMS = 5
STEM_TOKENS = 360
MAX_TAIL_TOKENS = 24
MAX_ANSWER_TOKENS = 96
MAX_PROMPT_TOKENS = STEM_TOKENS + MAX_TAIL_TOKENS
MIN_BLOCKS = -(-(MAX_PROMPT_TOKENS + MAX_ANSWER_TOKENS) // BLOCK_SIZE)  # of the longest request
REQUEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Question:
    """A request whose answer is known: the same tokens, however it is served."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    n: int = 1

    def samples(self) -> list[SamplingParams]:
        """How each choice is sampled."""
        sampling = self.sampling
        return [
            SamplingParams(
                sampling.temperature,
                sampling.top_p,
                sampling.top_k,
                sampling.min_p,
                sample_seed(sampling.seed, index),
            )
            for index in range(self.n)
        ]

    def body(self) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "model": MODEL_ID,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "n": self.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
        }


def draw_questions(source: random.Random, count: int) -> list[Question]:
    """Prompts that share long beginnings, and end in the middle of blocks and at their borders."""
    stems = [token_ids(source.randrange(2**30), STEM_TOKENS) for _ in range(NUM_STEMS)]
    return [_question(source, stems) for _ in range(count)]


def _question(source: random.Random, stems: Sequence[list[int]]) -> Question:
    length = source.randint(1, STEM_TOKENS)
    if source.random() < 0.4:
        border = BLOCK_SIZE * source.randint(1, STEM_TOKENS // BLOCK_SIZE)
        length = max(1, border + source.randint(-1, 1))
    tail = source.randint(0, MAX_TAIL_TOKENS) if source.random() < 0.5 else 0
    prompt = [*source.choice(stems)[:length], *token_ids(source.randrange(2**30), tail)]
    max_tokens = source.choice((1, 2, source.randint(3, MAX_ANSWER_TOKENS)))
    if source.random() < 0.5:
        return Question(tuple(prompt), max_tokens, SamplingParams(temperature=0.0))
    sampling = SamplingParams(
        temperature=source.choice((0.2, 0.8, 1.3)),
        top_p=source.choice((1.0, 0.9)),
        top_k=source.choice((0, 40)),
        min_p=source.choice((0.0, 0.02)),
        seed=source.randrange(2**40),
    )
    return Question(tuple(prompt), max_tokens, sampling, source.choice((1, 1, 2, 3)))


def draw_extras(source: random.Random) -> dict[str, Any]:
    """What changes who keeps and who reuses KV, and must not change an answer."""
    extras: dict[str, Any] = {}
    if source.random() < 0.4:
        extras["cache_salt"] = source.choice(("red", "blue"))
    if source.random() < 0.4:
        start = source.randrange(0, 200)
        extras["kv_cache_retention_config"] = {
            "token_range_retention_configs": [
                {
                    "token_start": start,
                    "token_end": start + source.randint(1, 200),
                    "priority": source.choice((0, 10, 60, 100)),
                    "duration_ms": source.choice((None, 300, 5000)),
                }
            ],
            "decode_retention_priority": source.choice((0, 35, 90)),
        }
    return extras


def draw_config(source: random.Random, model: str) -> dict[str, Any]:
    """Two prefill and two decode workers with little room."""
    policy = source.choice(("guaranteed_no_evict", "max_utilization", "guaranteed_no_evict"))
    shared: dict[str, Any] = {
        "kv_cache_dtype": "auto",
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 8,
        "chunk_size": source.choice((32, 64)),
        "capacity_scheduler_policy": policy,
        "host_cache_bytes": source.choice((0, 24, 80, 80)) * SHALLOW_BLOCK_BYTES,
        "offload_min_priority": source.choice((0, 35)),
        "enable_partial_reuse": source.random() < 0.8,
        "copy_on_partial_reuse": source.random() < 0.8,
        "enable_delay_for_reuse": source.random() < 0.8,
        "kv_event_capacity": source.choice((0, 1000)),
    }

    def engine() -> dict[str, Any]:
        expected: Any = "full"
        if policy != "max_utilization":
            expected = source.choice(("full", "learned", 8))
        blocks = source.randint(MIN_BLOCKS + 1, 4 * MIN_BLOCKS)
        return {**shared, "num_kv_blocks": blocks, "expected_output": expected}

    return {
        "model": {"path": model, "id": MODEL_ID},
        "pools": {
            "prefill": {"role": "prefill", "num_replicas": 2, "engine": engine()},
            "decode": {"role": "decode", "num_replicas": 2, "engine": engine()},
        },
        "transfer": {
            "lease_s": source.choice((3, 6)),
            "read_timeout_s": 2,
            "credit_wait_s": 20,
            "layer_groups": source.choice((1, 2)),
            "migration_wait_s": 2,
            "migration_pause_s": 2,
        },
        "control": {"dead_after_s": 20, "drain_timeout_s": 10},
        "gateway": {
            "recovery": {
                "worker_wait_s": 40,
                "max_attempts": 8,
                "ladder": source.choice(("full", "full", "no_local_decode")),
            },
            "admission": {"request_timeout_s": REQUEST_SECONDS},
        },
    }
