"""The report says so when its figures are not those of the server."""

import pytest

from segue.bench.load import LevelRun
from segue.bench.serve_bench import ServeResult
from segue.bench.serve_report import busy_client_lines, milliseconds
from segue.bench.summary import Distribution


@pytest.mark.parametrize(("cpu_s", "warned"), [(0.2, False), (1.8, True)])
def test_a_busy_client_is_admitted(cpu_s: float, warned: bool) -> None:
    result = ServeResult("m", None, (LevelRun(16, 2.0, cpu_s, ()),), ())
    lines = busy_client_lines(result)
    assert bool(lines) is warned
    assert not warned or lines[0].startswith("concurrency 16: this client used 90% of a core")


def test_latencies_are_shown_in_milliseconds() -> None:
    assert milliseconds(Distribution(3, 0.001, 0.25, 1.0, 2.0)).split() == [
        *("1.00", "250.00", "1000.00", "2000.00")
    ]
    assert milliseconds(None).split() == ["-"] * 4
