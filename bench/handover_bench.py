"""What a handoff costs a client: the time between the first token, which the prefill worker draws,
and the second, which the decode worker draws, beside the bytes that had to move for it.

The first pause holds one decode step and whatever of the KV had not arrived when the last chunk of
the prompt was computed. What the bytes cost alone is taken from the rate that the pair measured
when it met; what was hidden behind the prefill is counted by the decode worker.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from time import perf_counter
from typing import Any

import httpx
import orjson

from segue.bench.dataset import DEFAULT_TOKEN_IDS, PromptShape, token_prompts
from segue.bench.openai_endpoint import beginning, describe
from segue.bench.sse import EventReader
from segue.cluster.errors import ConfigurationError, Unavailable

COUNTERS_SETTLE_S = 0.5  # an answer ends at the client a moment before it ends at its worker


@dataclass(frozen=True, slots=True)
class HandoverPlan:
    base_url: str = "http://127.0.0.1:8000"
    model: str = ""
    api_key: str | None = None
    prompt_tokens: tuple[int, ...] = (128, 1024, 4096)
    output_tokens: int = 8
    rounds: int = 10
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        rules = (
            (self.prompt_tokens and min(self.prompt_tokens) >= 1, "--prompt-tokens: from 1"),
            (self.output_tokens >= 4, "--output-tokens: at least 4, for a step to compare with"),
            (self.rounds >= 1, "--rounds: at least 1"),
            (self.timeout_s > 0, "--timeout: more than 0"),
        )
        if broken := [wanted for kept, wanted in rules if not kept]:
            raise ConfigurationError("; ".join(broken))


@dataclass(frozen=True, slots=True)
class Moved:
    """KV bytes that decode workers have read since they began, and how many were early enough."""

    num_bytes: float
    early_bytes: float


@dataclass(frozen=True, slots=True)
class HandoverRow:
    """Medians over the rounds, in milliseconds. `exposed_bytes` had not arrived when the last chunk
    was computed; `exposed_raw_ms` is what they cost alone at the pair's rate."""

    prompt_tokens: int
    ttft_ms: float
    handover_ms: float  # first token at the client until the second
    step_ms: float  # between later tokens
    bytes_moved: int
    hidden_share: float  # of these bytes, arrived before the last chunk was computed
    exposed_bytes: int
    raw_ms: float  # what all bytes cost alone
    exposed_raw_ms: float

    @property
    def ratio(self) -> float:
        """The handover against the raw time of the exposed bytes and one decode step."""
        return self.handover_ms / (self.exposed_raw_ms + self.step_ms)


def summarise(
    prompt_tokens: int, arrivals: Sequence[Sequence[float]], moved: Moved, bytes_per_s: float
) -> HandoverRow:
    """`arrivals`: for each request, seconds after it was sent at which each token came."""
    gaps = [[after - before for before, after in zip(a, a[1:], strict=False)] for a in arrivals]
    num_bytes = round(moved.num_bytes / len(arrivals))
    exposed = round((moved.num_bytes - moved.early_bytes) / len(arrivals))
    return HandoverRow(
        prompt_tokens=prompt_tokens,
        ttft_ms=1e3 * statistics.median(a[0] for a in arrivals),
        handover_ms=1e3 * statistics.median(gap[0] for gap in gaps),
        step_ms=1e3 * statistics.median(step for gap in gaps for step in gap[1:]),
        bytes_moved=num_bytes,
        hidden_share=moved.early_bytes / moved.num_bytes if moved.num_bytes else 0.0,
        exposed_bytes=exposed,
        raw_ms=1e3 * num_bytes / bytes_per_s,
        exposed_raw_ms=1e3 * exposed / bytes_per_s,
    )


class HandoverServer:
    """One server, asked one request at a time."""

    def __init__(self, plan: HandoverPlan) -> None:
        headers = {"authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
        self._plan = plan
        self._client = httpx.AsyncClient(
            base_url=plan.base_url.rstrip("/"), headers=headers, timeout=None, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def arrivals(self, prompt: Sequence[int], model: str) -> list[float]:
        """Raises Unavailable unless exactly the tokens asked for come."""
        plan = self._plan
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": plan.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
        }
        began, found, events = perf_counter(), list[float](), EventReader()
        try:
            async with asyncio.timeout(plan.timeout_s):
                async with self._client.stream("POST", "/v1/completions", json=body) as response:
                    if response.status_code != 200:
                        raise Unavailable(f"{response.status_code}: {await beginning(response)}")
                    async for piece in response.aiter_raw():
                        at_s = perf_counter() - began
                        for payload in events.feed(piece):
                            found += [at_s] * _num_tokens(payload)
        except (httpx.HTTPError, TimeoutError) as error:
            raise Unavailable(f"a request failed: {describe(error)}") from error
        if len(found) != plan.output_tokens:
            raise Unavailable(f"{len(found)} tokens came instead of {plan.output_tokens}")
        return found

    async def status(self) -> dict[str, Any]:
        try:
            reply = await self._client.get("/debug/status", timeout=30.0)
            reply.raise_for_status()
            return dict(reply.json())
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"no status from the server: {describe(error)}") from error

    async def model(self) -> str:
        try:
            reply = await self._client.get("/v1/models", timeout=30.0)
            return str(reply.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise Unavailable(f"no model from the server: {describe(error)}") from error


def _num_tokens(payload: bytes) -> int:
    if payload == b"[DONE]":
        return 0
    event = orjson.loads(payload)
    if error := event.get("error"):
        raise Unavailable(f"the stream ended in an error: {error}")
    return sum(len(choice.get("token_ids") or ()) for choice in event.get("choices") or ())


def moved(status: dict[str, Any]) -> Moved:
    counters = [worker["counters"] for worker in status["workers"]]
    return Moved(
        sum(c.get("kv_bytes_announced", 0.0) for c in counters),
        sum(c.get("kv_bytes_overlapped", 0.0) for c in counters),
    )


def slowest_rate(status: dict[str, Any]) -> float:
    """Bytes a second of the slowest pair. Raises Unavailable if no pair was measured."""
    rates = [pair["gigabytes_per_second"] for pair in status["pairs"]]
    if not (known := [rate for rate in rates if rate]):
        raise Unavailable("no pair of workers has moved KV yet, or the server has only one worker")
    return float(min(known)) * 1e9


async def run_handover_bench(plan: HandoverPlan) -> list[HandoverRow]:
    """A row for each length of prompt; no two prompts are alike. Raises Unavailable."""
    server = HandoverServer(plan)
    random = Random(plan.seed)
    try:
        model = plan.model or await server.model()
        rows: list[HandoverRow] = []
        for length in plan.prompt_tokens:
            shape = PromptShape(length, 0)
            first, *prompts = token_prompts(random, plan.rounds + 1, shape, DEFAULT_TOKEN_IDS)
            await server.arrivals(first, model)  # whatever happens once has happened
            await asyncio.sleep(COUNTERS_SETTLE_S)
            before = moved(await server.status())
            arrivals = [await server.arrivals(prompt, model) for prompt in prompts]
            await asyncio.sleep(COUNTERS_SETTLE_S)
            status = await server.status()
            after = moved(status)
            change = Moved(
                after.num_bytes - before.num_bytes, after.early_bytes - before.early_bytes
            )
            rows.append(summarise(length, arrivals, change, slowest_rate(status)))
        return rows
    finally:
        await server.close()


def as_json(rows: Sequence[HandoverRow]) -> bytes:
    return orjson.dumps([asdict(row) | {"ratio": row.ratio} for row in rows])
