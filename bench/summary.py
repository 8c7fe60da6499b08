"""From measurements to figures: distributions, rates and failures of one level. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from segue.bench.measurement import Failure, Measurement


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds. Percentiles interpolate linearly between the two nearest ranks."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Distribution | None":
        """None of no values: there is no latency of nothing."""
        known = np.array([value for value in values if value is not None], dtype=np.float64)
        if not known.size:
            return None
        p50, p95, p99 = (float(p) for p in np.percentile(known, (50, 95, 99)))
        return cls(known.size, float(known.mean()), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class Objective:
    """What a user would call served well: time to first token, and mean gap between tokens."""

    ttft_s: float | None = None
    itl_s: float | None = None

    def met_by(self, request: Measurement) -> bool:
        if request.failure is not None or request.ttft_s is None:
            return False
        if self.ttft_s is not None and request.ttft_s > self.ttft_s:
            return False
        gap = request.tpot_s
        return self.itl_s is None or gap is None or gap <= self.itl_s


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One concurrency level. Only requests served whole count in latencies, tokens and rates."""

    concurrency: int
    wall_s: float
    requests: int
    served: int
    failures: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    tokens_per_chunk: float | None
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    good_requests: int | None  # None: no objective was set
    goodput_per_s: float | None


def summarise(
    concurrency: int,
    wall_s: float,
    measurements: Sequence[Measurement],
    objective: Objective | None = None,
) -> LevelSummary:
    served = [m for m in measurements if m.failure is None]
    failed = [m.failure for m in measurements if m.failure is not None]
    prompt_tokens = sum(m.prompt_tokens or 0 for m in served)
    output_tokens = sum(m.output_tokens or 0 for m in served)
    chunks = sum(len(m.chunks_s) for m in served)
    good = None if objective is None else sum(objective.met_by(m) for m in measurements)
    return LevelSummary(
        concurrency=concurrency,
        wall_s=wall_s,
        requests=len(measurements),
        served=len(served),
        failures=dict(Counter(failure.label for failure in failed).most_common()),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        tokens_per_chunk=output_tokens / chunks if chunks else None,
        requests_per_s=len(served) / wall_s,
        output_tokens_per_s=output_tokens / wall_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / wall_s,
        ttft=Distribution.of(m.ttft_s for m in served),
        itl=Distribution.of(gap for m in served for gap in m.gaps_s),
        tpot=Distribution.of(m.tpot_s for m in served),
        e2e=Distribution.of(m.ended_s for m in served),
        good_requests=good,
        goodput_per_s=None if good is None else good / wall_s,
    )


def first_of_each_kind(measurements: Sequence[Measurement]) -> dict[str, Failure]:
    """One example of every kind of failure, the earliest."""
    examples: dict[str, Failure] = {}
    for measurement in measurements:
        if measurement.failure is not None:
            examples.setdefault(measurement.failure.label, measurement.failure)
    return examples
