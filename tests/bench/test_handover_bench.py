"""The handover figures: from arrivals and counters to a row, and from a status to its rates."""

import pytest

from segue.bench.handover_bench import HandoverPlan, Moved, moved, slowest_rate, summarise
from segue.cluster.errors import ConfigurationError, Unavailable

STATUS = {
    "workers": [
        {"counters": {"kv_bytes_announced": 100.0, "kv_bytes_overlapped": 60.0}},
        {"counters": {}},
        {"counters": {"kv_bytes_announced": 20.0, "kv_bytes_overlapped": 0.0}},
    ],
    "pairs": [{"gigabytes_per_second": 2.0}, {"gigabytes_per_second": None}],
}


def test_a_row_holds_the_first_pause_apart_from_the_later_ones() -> None:
    arrivals = [[0.5, 0.6, 0.61, 0.62], [0.7, 0.82, 0.83, 0.84], [0.4, 0.5, 0.51, 0.53]]
    row = summarise(128, arrivals, Moved(3e9, 2.4e9), bytes_per_s=1e9)
    assert row.ttft_ms == pytest.approx(500)
    assert row.handover_ms == pytest.approx(100)
    assert row.step_ms == pytest.approx(10)
    assert (row.bytes_moved, row.exposed_bytes) == (10**9, 2 * 10**8)
    assert row.hidden_share == pytest.approx(0.8)
    assert row.raw_ms == pytest.approx(1000)
    assert row.exposed_raw_ms == pytest.approx(200)
    assert row.ratio == pytest.approx(100 / 210)


def test_nothing_moved_hides_nothing() -> None:
    assert summarise(1, [[0.1, 0.2, 0.3]], Moved(0.0, 0.0), 1e9).hidden_share == 0.0


def test_counters_of_all_workers_and_the_slowest_pair_count() -> None:
    assert moved(STATUS) == Moved(120.0, 60.0)
    assert slowest_rate(STATUS) == 2e9
    with pytest.raises(Unavailable, match="no pair"):
        slowest_rate({"pairs": []})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "--rounds"),
        ({"output_tokens": 2}, "--output-tokens"),
        ({"prompt_tokens": ()}, "--prompt"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HandoverPlan(**change)  # type: ignore[arg-type]
