"""The operator reads one line for each thing that happens, and nothing twice."""

import logging

import pytest

from segue.cluster.fleet import DeathCause, FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.deploy.fleet_log import FleetLog
from segue.router.generation import Readiness


def worker(
    life: int, state: WorkerState, reason: str = "", last_end: str = "", drained: int = 0
) -> WorkerView:
    identity = WorkerIdentity("decode-0", f"life-{life}")
    return WorkerView(
        *(identity, "decode", "decode", state, reason),
        pid=40 + life,
        restarts=life - 1,
        last_end=last_end,
        deaths={DeathCause.DRAINED: drained},
    )


def test_a_wedged_worker_is_told_when_suspect_when_dead_and_when_it_starts_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "segue")
    log = FleetLog(lambda: Readiness(False, "why not"), "http://gateway")
    wedged = "wedged: the engine thread has not moved for 180 s"
    for view in (
        worker(1, WorkerState.STARTING),
        worker(1, WorkerState.READY),
        worker(1, WorkerState.SUSPECT, "stalled: the engine thread"),
        worker(1, WorkerState.SUSPECT, "stalled: the engine thread"),
        worker(1, WorkerState.DEAD, wedged, wedged),
        worker(2, WorkerState.STARTING, last_end=wedged),
        worker(2, WorkerState.READY, last_end=wedged),
    ):
        log.observe(FleetView(workers=(view,)))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", "decode-0 starting"),
        ("INFO", "decode-0 ready (pid 41)"),
        ("WARNING", "decode-0 suspect: stalled: the engine thread"),
        ("WARNING", f"decode-0 dead: {wedged}"),
        ("INFO", f"decode-0 starting (restart 1; before: {wedged})"),
        ("INFO", "decode-0 ready (pid 42)"),
    ]


def test_a_planned_drain_is_no_warning_and_a_death_after_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "segue")
    log = FleetLog(lambda: Readiness(False, "why not"), "http://gateway")
    for view in (
        worker(1, WorkerState.READY),
        worker(1, WorkerState.DRAINING, "drained on order"),
        worker(1, WorkerState.DEAD, "drained (drained on order)", drained=1),
        worker(2, WorkerState.READY, drained=1),
        worker(2, WorkerState.DEAD, "killed by SIGKILL", drained=1),
    ):
        log.observe(FleetView(workers=(view,)))
    assert [record.levelname for record in caplog.records] == [*["INFO"] * 4, "WARNING"]
