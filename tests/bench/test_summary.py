"""Figures: percentiles against a naive definition, and what counts into which rate."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.bench.measurement import Failure, Fault, Measurement
from segue.bench.summary import Distribution, Objective, first_of_each_kind, summarise

SECONDS = st.floats(0, 1e4, allow_nan=False)
GOOD = Measurement(0.0, 3.0, (1.0, 2.0), 2.0, 10, 2)
BAD = replace(GOOD, failure=Failure(Fault.HTTP, "no", 500))


def naive_percentile(values: list[float], percent: float) -> float:
    ranked = sorted(values)
    at = (len(ranked) - 1) * percent / 100
    low, high = ranked[math.floor(at)], ranked[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


@given(st.lists(SECONDS, min_size=1, max_size=40))
def test_percentiles_are_the_naive_ones(values: list[float]) -> None:
    found = Distribution.of([*values, None])
    assert found is not None
    assert found.count == len(values)
    assert found.mean == pytest.approx(math.fsum(values) / len(values), abs=1e-9)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        assert value == pytest.approx(naive_percentile(values, percent), abs=1e-9)


def test_nothing_has_no_distribution() -> None:
    assert Distribution.of([None]) is None


@given(st.lists(st.booleans(), max_size=20), st.floats(0.1, 100))
def test_only_whole_answers_count(outcomes: list[bool], wall_s: float) -> None:
    summary = summarise(4, wall_s, [GOOD if served else BAD for served in outcomes], Objective())
    served = sum(outcomes)
    assert summary.served + sum(summary.failures.values()) == summary.requests == len(outcomes)
    assert summary.output_tokens == 2 * served
    assert summary.total_tokens_per_s == pytest.approx(12 * served / wall_s)
    assert summary.requests_per_s == pytest.approx(served / wall_s)
    assert summary.good_requests == served
    assert (summary.ttft is None) == (summary.tokens_per_chunk is None) == (served == 0)


def test_failures_are_counted_by_kind_and_the_first_is_shown() -> None:
    other = replace(GOOD, failure=Failure(Fault.TIMEOUT, "late"))
    later = replace(GOOD, failure=Failure(Fault.HTTP, "again", 500))
    assert summarise(1, 1.0, [BAD, other, later, GOOD]).failures == {"http 500": 2, "timeout": 1}
    examples = first_of_each_kind([BAD, other, later])
    assert {label: failure.detail for label, failure in examples.items()} == {
        "http 500": "no",
        "timeout": "late",
    }


@pytest.mark.parametrize(
    ("objective", "request_", "met"),
    [
        (Objective(), GOOD, True),
        (Objective(), BAD, False),
        (Objective(ttft_s=1.0, itl_s=1.0), GOOD, True),
        (Objective(ttft_s=0.9), GOOD, False),
        (Objective(itl_s=0.9), GOOD, False),
        (Objective(itl_s=0.9), replace(GOOD, output_tokens=1), True),
    ],
)
def test_objective(objective: Objective, request_: Measurement, met: bool) -> None:
    assert objective.met_by(request_) is met


def test_without_an_objective_there_is_no_goodput() -> None:
    assert summarise(1, 1.0, [GOOD]).goodput_per_s is None
