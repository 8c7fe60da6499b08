"""What a long prompt costs a short one that comes behind it, and the other way round.

Each round sends the short prompt alone, the long one alone, and the short one a moment behind the
long one. All figures are times to the first token of one run, so their ratios mean something on a
machine that others use too.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

import orjson

from segue.bench.dataset import DEFAULT_TOKEN_IDS, PromptShape, token_prompts
from segue.bench.openai_endpoint import OpenAIEndpoint
from segue.cluster.errors import ConfigurationError, Unavailable


@dataclass(frozen=True, slots=True)
class InterferencePlan:
    base_url: str = "http://127.0.0.1:8000"
    model: str = ""
    api_key: str | None = None
    long_tokens: int = 7800
    short_tokens: int = 10
    delay_s: float = 0.3  # of the short one
    rounds: int = 3
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        rules = (
            (1 <= self.short_tokens <= self.long_tokens, "--short-tokens: 1 to --long-tokens"),
            (self.delay_s >= 0, "--delay: from 0"),
            (self.rounds >= 1, "--rounds: at least 1"),
            (self.timeout_s > 0, "--timeout: more than 0"),
        )
        if broken := [wanted for kept, wanted in rules if not kept]:
            raise ConfigurationError("; ".join(broken))


@dataclass(frozen=True, slots=True)
class Interference:
    """Medians over the rounds of the time to the first token, in milliseconds."""

    short_alone_ms: float
    short_behind_ms: float
    long_alone_ms: float
    long_before_ms: float

    @property
    def short_ratio(self) -> float:
        return self.short_behind_ms / self.short_alone_ms

    @property
    def long_ratio(self) -> float:
        return self.long_before_ms / self.long_alone_ms


def summarise(rounds: Sequence[Interference]) -> Interference:
    columns = zip(*(asdict(each).values() for each in rounds), strict=True)
    return Interference(*map(statistics.median, columns))


async def run_interference_bench(plan: InterferencePlan) -> Interference:
    """No two prompts are alike. Raises Unavailable if a request fails."""
    random = Random(plan.seed)

    def prompts(num_tokens: int) -> list[list[int]]:
        return token_prompts(random, 2 * plan.rounds, PromptShape(num_tokens), DEFAULT_TOKEN_IDS)

    shorts, longs = prompts(plan.short_tokens), prompts(plan.long_tokens)
    async with OpenAIEndpoint(plan.base_url, plan.api_key, 4, plan.timeout_s) as endpoint:
        model = plan.model or await endpoint.first_model()

        async def ttft_ms(prompt: list[int], delay_s: float = 0.0) -> float:
            await asyncio.sleep(delay_s)
            measured = await endpoint.measure("completions", _body(model, prompt), 1, 0.0)
            if measured.failure is not None or not measured.chunks_s:
                raise Unavailable(f"a request failed: {measured.failure}")
            return 1e3 * measured.chunks_s[0]

        await ttft_ms(shorts[0][:1])  # whatever happens once has happened
        rounds = []
        for number in range(plan.rounds):
            alone = await ttft_ms(shorts[number]), await ttft_ms(longs[number])
            other = plan.rounds + number
            before, behind = await asyncio.gather(
                ttft_ms(longs[other]), ttft_ms(shorts[other], plan.delay_s)
            )
            rounds.append(Interference(alone[0], behind, alone[1], before))
    return summarise(rounds)


def _body(model: str, prompt: list[int]) -> bytes:
    return orjson.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def as_json(found: Interference) -> bytes:
    ratios = {"short_ratio": found.short_ratio, "long_ratio": found.long_ratio}
    return orjson.dumps({name: round(v, 3) for name, v in {**asdict(found), **ratios}.items()})
