"""Medians and ratios of a short prompt behind a long one."""

import pytest

from segue.bench.interference_bench import Interference, InterferencePlan, as_json, summarise
from segue.cluster.errors import ConfigurationError


def test_medians_are_taken_column_by_column() -> None:
    rounds = [
        Interference(100, 200, 1000, 1100),
        Interference(90, 400, 3000, 1000),
        Interference(110, 300, 2000, 2400),
    ]
    found = summarise(rounds)
    assert found == Interference(100, 300, 2000, 1100)
    assert (found.short_ratio, found.long_ratio) == (3.0, 0.55)
    assert b'"short_ratio":3.0' in as_json(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"short_tokens": 0}, "--short"), ({"delay_s": -1}, "--delay"), ({"rounds": 0}, "--rounds")],
)
def test_a_plan_that_measures_nothing_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        InterferencePlan(**change)  # type: ignore[arg-type]
