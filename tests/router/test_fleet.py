"""When the front door may open, and what it says while it is shut."""

import pytest

from segue.cluster.config import Role
from segue.cluster.fleet import FleetView, PoolView, WorkerState, WorkerView
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.worker_status import WorkerStatus
from segue.router.fleet import readiness, status_report


def worker(role: Role, state: WorkerState = WorkerState.READY) -> WorkerView:
    identity = WorkerIdentity(f"{role}-0", "life-1")
    gauges = {"running_requests": 3.0}
    return WorkerView(
        identity,
        role,
        role,
        state,
        reason="" if state is WorkerState.READY else "why not",
        state_seconds=2.0,
        peer=Peer(identity, "127.0.0.1:7"),
        pid=42,
        status=WorkerStatus(identity, role, gauges=gauges, transport="nixl/ucx"),
    )


def view(*workers: WorkerView) -> FleetView:
    pools = tuple(
        PoolView(
            w.pool,
            w.role,
            1,
            int(w.state is WorkerState.READY),
            "" if w.state is WorkerState.READY else f"{w.identity.worker_id} {w.state}: why not",
        )
        for w in workers
    )
    return FleetView(1, "controller", workers, pools)


@pytest.mark.parametrize(
    ("fleet", "ready"),
    [
        (view(), False),
        (view(worker("prefill")), False),
        (view(worker("decode")), False),
        (view(worker("prefill"), worker("decode")), True),
        (view(worker("both")), True),
        (view(worker("both"), worker("decode", WorkerState.DEAD)), True),
        (view(worker("prefill"), worker("decode", WorkerState.SUSPECT)), False),
        (view(worker("prefill"), worker("decode", WorkerState.DRAINING)), False),
        (view(worker("prefill", WorkerState.STARTING), worker("decode")), False),
    ],
)
def test_ready_with_a_whole_path_for_a_request(fleet: FleetView, ready: bool) -> None:
    state = readiness(fleet, 0.1)
    assert state.ready is ready
    assert bool(state.reason) is not ready


def test_reason_names_the_pool_and_why() -> None:
    state = readiness(view(worker("prefill"), worker("decode", WorkerState.STARTING)), 0.1)
    assert state.reason == ("no decode worker is ready (pool decode: decode-0 starting: why not)")
    assert state.details == {
        "prefill": "1 of 1 ready",
        "decode": "0 of 1 ready: decode-0 starting: why not",
    }
    assert "controller has not told" in readiness(FleetView(), 0.1).reason


def test_old_view_serves_on_but_is_told() -> None:
    state = readiness(view(worker("both")), 60.0, "connection refused")
    assert state.ready
    assert state.details["controller"] == "not heard of for 60 s: connection refused"


def test_status_report_holds_every_worker_and_no_gauges_of_the_dead() -> None:
    fleet = view(worker("prefill"), worker("decode", WorkerState.DEAD))
    report = status_report(fleet, 1.0)
    living, dead = report["workers"]
    assert living["gauges"] == {"running_requests": 3.0} and living["transport"] == "nixl/ucx"
    assert living["state_seconds"] == 3.0 and living["pid"] == 42
    assert dead["gauges"] == {} and dead["state"] == "dead" and dead["reason"] == "why not"
    assert report["pools"][1] == {
        "name": "decode",
        "role": "decode",
        "desired": 1,
        "ready": 0,
        "reason": "decode-0 dead: why not",
    }
