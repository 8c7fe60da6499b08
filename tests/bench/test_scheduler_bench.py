"""The scheduler's benchmark runs, says what it promises, and measures what it claims to."""

import pytest

from segue.bench import scheduler_bench


def test_the_figures_have_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    figures = scheduler_bench.measure((16, 32), rounds=10, repeats=2)
    assert list(figures) == ["steady_us", "churn_us", "admission_us"]
    for name in ("steady_us", "churn_us"):
        by_running = figures[name]
        assert isinstance(by_running, dict)
        assert list(by_running) == ["16", "32"] and min(by_running.values()) > 0
    assert "admission of 8192 tokens, half of them cached" in capsys.readouterr().out


def test_churn_replaces_a_twentieth_a_round() -> None:
    engine, requests = scheduler_bench.engine_for(40, 480), scheduler_bench.Requests()
    for _ in range(60):
        for _ in range(2):
            engine.add(requests.make(scheduler_bench.CHURN_PROMPT, scheduler_bench.CHURN_LIFETIME))
        engine.run_once()
    assert engine.scheduler.num_admitted == 38  # those of the last 19 rounds; the 20th have ended
    assert not engine.scheduler.waiting
