"""What a step costs beside the model: scheduling, KV bookkeeping, and what the engine does with it.

    python -m segue.bench.scheduler_bench

Runs whole rounds of the engine around a model that answers at once: admission, KV blocks, prefix
cache, tokens, ends, everything but frames. The last line is one JSON object: `steady_us` and
`churn_us` by number of running requests, `admission_us`. Each figure is the least of several
medians, taken in turns: whatever else the machine does can only add to it.
"""

import gc
import math
import statistics
import time
from collections.abc import Iterable, Iterator

import numpy as np
import orjson
import torch

from segue.cluster.block_hash import KeyScope
from segue.cluster.handoff import Assignment
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.workers.batch import PackedBatch
from segue.workers.engine import Engine
from segue.workers.generation_batch import GenerationBatch
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.plan import StepPlan
from segue.workers.scheduler.scheduler import Scheduler, SchedulerSettings
from segue.workers.sequence import Sequence
from segue.workers.step_execution import LayerNews, StepExecution, StepResult
from segue.workers.step_outcome import StepOutcome

BLOCK_SIZE = 16
RUNNING = (16, 64, 256, 1024)
CHURN_LIFETIME = 20  # steps: a twentieth is replaced in each
CHURN_PROMPT = 24  # with the answer three blocks
ADMITTED_PROMPT = 8192
TOKEN = 5
REPEATS = 15


class SilentRunner:
    def execute(self, batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
        raise AssertionError("InstantExecution answers before a runner is asked")

    def copy_blocks(self, operations: object) -> None:
        """There are no blocks behind the ids."""


class InstantExecution(StepExecution):
    """Draws the same token for everybody, and takes no time for it."""

    def __init__(self) -> None:
        super().__init__(SilentRunner(), None)
        self._tokens = np.full(max(RUNNING), TOKEN, np.int64)

    def run(
        self, plan: StepPlan, rows: GenerationBatch, on_layers: LayerNews | None = None
    ) -> StepResult:
        ending = {
            sequence: TOKEN
            for sequence, start, size in plan.context
            if start + size == len(sequence.tokens)
        }
        return StepResult(ending, self._tokens[: len(rows)], {})


class Requests:
    """Makes sequences; no two prompts share a block."""

    def __init__(self) -> None:
        self._count = 0

    def make(self, prompt_tokens: int, answer: int, shared: int = 0) -> Sequence:
        """The first `shared` tokens are those of every other prompt that shares."""
        self._count += 1
        own = (self._count,) * (prompt_tokens - shared)
        request = GenerationRequest(
            f"request-{self._count}",
            (0,) * shared + own,
            SamplingParams(temperature=0.0),
            StopRule(answer, 0, frozenset({1, 2})),
        )
        return Sequence(Assignment(request, 1, (), "gateway", 600.0), deadline=1e12)


def engine_for(running: int, num_blocks: int, told: list[StepOutcome] | None = None) -> Engine:
    """What it has to say is appended to `told`: a worker's event loop takes it from there."""
    cache = KVCache(
        BlockPool(num_blocks), BLOCK_SIZE, KeyScope("model", "float32", BLOCK_SIZE, "rope")
    )
    budget = StepBudget(16384, 8192, BLOCK_SIZE)
    scheduler = Scheduler(cache, budget, SchedulerSettings(running, priority_ageing_seconds=30.0))
    listen = (lambda outcome: None) if told is None else told.append
    return Engine(scheduler, InstantExecution(), listen)


def microseconds_per_round(engine: Engine, rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        began = time.perf_counter_ns()
        engine.run_once()
        yield (time.perf_counter_ns() - began) / 1e3


def steady(running: int, rounds: int = 1600) -> tuple[float, float]:
    """(median, mean) of a round. All begin their blocks in the same step, every 16th, so the
    median is a round in which nothing happens, and the mean has everybody's new blocks in it."""
    engine, requests = engine_for(running, running * 120), Requests()
    for _ in range(running):
        engine.add(requests.make(BLOCK_SIZE, rounds + 200))
    while len(engine.scheduler.generation) < running:
        engine.run_once()
    _settle_memory()
    times = list(microseconds_per_round(engine, rounds))
    return statistics.median(times), statistics.fmean(times)


def churn(running: int, rounds: int = 400) -> float:
    """Median round in which 5 % end and as many come, each with a prompt of its own.

    The pool holds four times what runs, so nearly every new block takes the place of a cached one.
    """
    told: list[StepOutcome] = []
    engine, requests = engine_for(running, running * 12, told), Requests()
    share = [
        running * (at + 1) // CHURN_LIFETIME - running * at // CHURN_LIFETIME
        for at in range(CHURN_LIFETIME)
    ]
    _settle_memory()
    times: list[float] = []
    for at in range(rounds + 3 * CHURN_LIFETIME):
        told.clear()
        arriving = [
            requests.make(CHURN_PROMPT, CHURN_LIFETIME) for _ in range(share[at % CHURN_LIFETIME])
        ]
        began = time.perf_counter_ns()
        for sequence in arriving:
            engine.add(sequence)
        engine.run_once()
        if at >= 3 * CHURN_LIFETIME:
            times.append((time.perf_counter_ns() - began) / 1e3)
    if engine.scheduler.num_admitted < 0.9 * running:
        raise RuntimeError(f"{engine.scheduler.num_admitted} ran instead of {running}")
    return statistics.median(times)


def admission(times: int = 60) -> float:
    """Median time in which a prompt of 8,192 tokens gets its blocks; half of it is cached."""
    engine, requests = engine_for(4, 4096), Requests()
    scheduler, cache = engine.scheduler, engine.cache
    half = ADMITTED_PROMPT // 2
    engine.add(requests.make(half, 1, shared=half))
    while engine.num_sequences:
        engine.run_once()
    taken: list[float] = []
    _settle_memory()
    for _ in range(times):
        sequence = requests.make(ADMITTED_PROMPT, 64, shared=half)
        began = time.perf_counter_ns()
        scheduler.add(sequence)
        scheduler.schedule()
        taken.append((time.perf_counter_ns() - began) / 1e3)
        if sequence.num_computed != half:
            raise RuntimeError(f"{sequence.num_computed} tokens were reused, not {half}")
        scheduler.remove(sequence)
        cache.free(sequence)
    return statistics.median(taken)


def _settle_memory() -> None:
    """As a worker does once it is loaded: collections look at new objects only."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def measure(
    running: Iterable[int] = RUNNING, rounds: int = 400, repeats: int = REPEATS
) -> dict[str, object]:
    """Print a table and return its figures."""
    counts = tuple(running)
    quiet = dict.fromkeys(counts, math.inf)
    growing, churning = dict(quiet), dict(quiet)
    admitting = math.inf
    for _ in range(repeats):
        for count in counts:
            median, mean = steady(count, 4 * rounds)
            quiet[count] = min(quiet[count], median)
            growing[count] = min(growing[count], mean)
            churning[count] = min(churning[count], churn(count, rounds))
        admitting = min(admitting, admission())
    print(f"{'running':>8} {'steady us':>10} {'with new blocks':>16} {'churn us':>10}")
    for count in counts:
        print(f"{count:>8} {quiet[count]:>10.1f} {growing[count]:>16.1f} {churning[count]:>10.1f}")
    print(f"admission of {ADMITTED_PROMPT} tokens, half of them cached: {admitting:.1f} us")
    return {
        "steady_us": {str(count): round(quiet[count], 1) for count in counts},
        "churn_us": {str(count): round(churning[count], 1) for count in counts},
        "admission_us": round(admitting, 1),
    }


def main() -> None:
    print(orjson.dumps(measure()).decode())


if __name__ == "__main__":
    main()
