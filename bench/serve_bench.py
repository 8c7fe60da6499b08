"""The serving benchmark: a plan, its requests, and one run of every concurrency level."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import orjson

from segue.bench.dataset import (
    DEFAULT_TOKEN_IDS,
    PromptShape,
    load_tokenizer,
    ordinary_token_ids,
    text_prompts,
    token_prompts,
)
from segue.bench.load import LevelRun, run_level
from segue.bench.measurement import Measurement
from segue.bench.openai_endpoint import EndpointName, OpenAIEndpoint
from segue.bench.summary import LevelSummary, Objective, summarise
from segue.cluster.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ServePlan:
    """All that decides what is sent. Raises ConfigurationError if it makes no sense."""

    base_url: str = "http://127.0.0.1:8000"
    model: str | None = None  # the first one the server names
    api_key: str | None = None
    endpoint: EndpointName = "completions"
    concurrency: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 128
    output_tokens: int = 64
    requests_per_level: int | None = None  # the larger of 8 and four a client
    shared_prefix_tokens: int = 0
    warmup: int = 2
    seed: int = 0
    timeout_s: float = 600.0
    tokenizer: Path | None = None
    objective: Objective | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        requests, shared = self.requests_per_level, self.shared_prefix_tokens
        rules = (
            (url.scheme in ("http", "https") and url.hostname, "--url: http://host:port"),
            (
                self.concurrency and min(self.concurrency) >= 1,
                "--concurrency: one or more numbers from 1",
            ),
            (self.prompt_tokens >= 1, "--prompt-tokens: at least 1"),
            (self.output_tokens >= 1, "--output-tokens: at least 1"),
            (requests is None or requests >= 1, "--requests-per-level: at least 1"),
            (
                0 <= shared <= self.prompt_tokens,
                "--shared-prefix-tokens: from 0 to --prompt-tokens",
            ),
            (self.warmup >= 0, "--warmup: at least 0"),
            (self.timeout_s > 0, "--timeout: more than 0"),
        )
        if broken := [wanted for kept, wanted in rules if not kept]:
            raise ConfigurationError("; ".join(broken))

    def num_requests(self, concurrency: int) -> int:
        return self.requests_per_level or max(8, 4 * concurrency)


@dataclass(frozen=True, slots=True)
class ServeResult:
    """Raw and condensed figures of a whole run; the warm-up is kept apart."""

    model: str
    warmup: LevelRun | None
    levels: tuple[LevelRun, ...]
    summaries: tuple[LevelSummary, ...]

    @property
    def num_failed(self) -> int:
        runs = [run for run in (self.warmup, *self.levels) if run is not None]
        return sum(m.failure is not None for run in runs for m in run.measurements)


@dataclass(frozen=True, slots=True)
class Progress:
    """Whom to tell that a level begins (name, requests) and that a request has ended."""

    begin: Callable[[str, int], None]
    end_request: Callable[[Measurement], None]


def request_bodies(plan: ServePlan, model: str, count: int) -> list[bytes]:
    """Build all requests before any is sent: the clock shall not see it. No two are alike."""
    random = Random(plan.seed)
    shape = PromptShape(plan.prompt_tokens, plan.shared_prefix_tokens)
    tokenizer = load_tokenizer(plan.tokenizer) if plan.tokenizer else None
    prompts: list[dict[str, Any]]
    if plan.endpoint == "completions":
        ids = ordinary_token_ids(tokenizer) if tokenizer else DEFAULT_TOKEN_IDS
        prompts = [{"prompt": ids_} for ids_ in token_prompts(random, count, shape, ids)]
    else:
        texts = text_prompts(random, count, shape, tokenizer)
        prompts = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    common: dict[str, Any] = {
        "model": model,
        "max_tokens": plan.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return [orjson.dumps(prompt | common) for prompt in prompts]


async def run_serve_bench(plan: ServePlan, progress: Progress) -> ServeResult:
    """Warm up, then run each level. Raises Unavailable if the server names no model."""
    connections = max(plan.concurrency)
    async with OpenAIEndpoint(plan.base_url, plan.api_key, connections, plan.timeout_s) as endpoint:
        model = plan.model or await endpoint.first_model()
        counts = [plan.num_requests(concurrency) for concurrency in plan.concurrency]
        bodies = iter(request_bodies(plan, model, plan.warmup + sum(counts)))

        async def send(body: bytes, level_began: float) -> Measurement:
            return await endpoint.measure(plan.endpoint, body, plan.output_tokens, level_began)

        async def run(name: str, concurrency: int, count: int) -> LevelRun:
            progress.begin(name, count)
            batch = [next(bodies) for _ in range(count)]
            return await run_level(concurrency, batch, send, progress.end_request)

        warmup = await run("warm-up", connections, plan.warmup) if plan.warmup else None
        levels = [
            await run(f"concurrency {concurrency}", concurrency, count)
            for concurrency, count in zip(plan.concurrency, counts, strict=True)
        ]
    summaries = [
        summarise(run.concurrency, run.wall_s, run.measurements, plan.objective) for run in levels
    ]
    return ServeResult(model, warmup, tuple(levels), tuple(summaries))
