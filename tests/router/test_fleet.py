"""When the front door may open, and what it says while it is shut."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from segue.cluster.config.gateway import LadderName
from segue.cluster.config.pool import Role
from segue.cluster.fleet import FleetView, PoolView, WorkerState, WorkerView
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.worker_status import PairReport, WorkerStatus
from segue.deploy.status_command import WIDE, render
from segue.router.fleet import Front, readiness, status_report
from segue.router.fleet_metrics import FleetMetrics
from segue.router.journey import JourneyCounters
from segue.router.links import WorkerLinks
from segue.router.policy import Load, choose


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


def apart(reader: WorkerView) -> WorkerView:
    """It does not read from prefill-0: their preflight failed."""
    assert reader.status is not None
    source = WorkerIdentity("prefill-0", "life-1")
    pair = PairReport(source, "tcp", "", True, 0.5, 3.0, "tcp is not rdma", 8.0)
    return replace(reader, status=replace(reader.status, pairs=(pair,)))


PAIRS_ONLY = Front(ladder="pairs_only")


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
        (view(worker("prefill"), apart(worker("decode"))), False),
        (view(worker("both")), True),
        (view(worker("both"), worker("decode", WorkerState.DEAD)), True),
        (view(worker("prefill"), worker("decode", WorkerState.SUSPECT)), False),
        (view(worker("prefill"), worker("decode", WorkerState.DRAINING)), False),
        (view(worker("prefill", WorkerState.STARTING), worker("decode")), False),
    ],
)
def test_ready_with_a_whole_path_for_a_request(fleet: FleetView, ready: bool) -> None:
    state = readiness(fleet, 0.1, front=PAIRS_ONLY)
    assert state.ready is ready
    assert bool(state.reason) is not ready
    if any(w.state is WorkerState.READY for w in fleet.workers):  # with the others to stand in
        assert readiness(fleet, 0.1).ready


def test_reason_names_the_pool_and_why() -> None:
    fleet = view(worker("prefill"), worker("decode", WorkerState.STARTING))
    state = readiness(fleet, 0.1, front=PAIRS_ONLY)
    assert state.reason == ("no decode worker is ready (pool decode: decode-0 starting: why not)")
    assert readiness(fleet, 0.1).details["degraded"] == (
        f"{state.reason}; requests are served all the same: decode_on_prefill"
    )
    assert state.details == {
        "prefill": "1 of 1 ready",
        "decode": "0 of 1 ready: decode-0 starting: why not",
    }
    assert "controller has not told" in readiness(FleetView(), 0.1).reason


def test_a_worker_to_which_the_link_is_broken_is_of_no_use_here() -> None:
    fleet = view(worker("prefill"), worker("decode"))
    front = Front(lambda identity: identity.worker_id == "prefill-0", ladder="pairs_only")
    state = readiness(fleet, 0.1, front=front)
    assert not state.ready
    assert state.reason == (
        "no decode worker is ready (decode-0: this gateway has no connection to it)"
    )
    assert readiness(view(worker("both")), 0.1, front=Front(lambda identity: False)).ready is False
    second = replace(worker("decode"), identity=WorkerIdentity("decode-1", "life-1"))
    fleet = view(*fleet.workers, second)
    front = Front(lambda identity: identity.worker_id != "decode-1")
    state = readiness(fleet, 0.1, front=front)
    assert state.ready and state.details["decode-1"] == "this gateway has no connection to it"
    report = status_report(fleet, 0.1, front=front)
    assert [w["reason"] for w in report["workers"]] == [
        *("", ""),
        "this gateway has no connection to it",
    ]


def test_pairs_that_exchange_no_kv_are_told_where_nobody_stands_in() -> None:
    """It said ready while every request was answered 503."""
    fleet = view(worker("prefill"), apart(worker("decode")))
    state = readiness(fleet, 0.1, front=PAIRS_ONLY)
    assert not state.ready and "no two workers can exchange KV" in state.reason
    assert choose(fleet.workers, Load(), (), "pairs_only") is None
    degraded = readiness(fleet, 0.1)
    assert degraded.ready and "no two workers can exchange KV" in degraded.details["degraded"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["prefill", "decode", "both"]),
            st.sampled_from([WorkerState.READY, WorkerState.SUSPECT, WorkerState.STARTING]),
            st.booleans(),
        ),
        max_size=5,
    ),
    st.sampled_from(["full", "no_local_prefill", "no_local_decode", "pairs_only"]),
)
def test_ready_is_what_the_policy_does(
    drawn: list[tuple[Role, WorkerState, bool]], ladder: LadderName
) -> None:
    workers = []
    for number, (role, phase, refuses) in enumerate(drawn):
        one = worker(role, phase)
        one = apart(one) if refuses and role != "prefill" else one
        workers.append(replace(one, identity=WorkerIdentity(f"{role}-{number}", "life-1")))
    fleet = view(*workers)
    state = readiness(fleet, 0.1, front=Front(ladder=ladder))
    assert state.ready is (choose(fleet.ready_workers(), Load(), (), ladder) is not None)
    assert state.ready or state.reason


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


def test_pairs_are_reported_until_their_reader_is_dead() -> None:
    prefill, decode = worker("prefill"), worker("decode")
    assert decode.status is not None
    pair = PairReport(prefill.identity, "tcp", "tcp/eth0", True, 0.51234, 3.0, "not rdma", 8.0)
    decode = replace(decode, status=replace(decode.status, pairs=(pair,)))
    (told,) = status_report(view(prefill, decode), 1.0)["pairs"]
    assert (told["source"], told["reader"]) == ("prefill-0", "decode-0")
    assert (told["transport"], told["gigabytes_per_second"]) == ("tcp", 0.512)
    assert (told["refusal"], told["retry_seconds"]) == ("not rdma", 8.0)
    text = "\n".join(rendered(status_report(view(prefill, decode), 1.0)))
    assert "refused: not rdma" in text and "tcp/eth0" in text and "0.51" in text
    dead = replace(decode, state=WorkerState.DEAD)
    assert status_report(view(prefill, dead), 1.0)["pairs"] == []


async def test_pairs_are_metrics() -> None:
    prefill, decode = worker("prefill"), worker("decode")
    good = PairReport(prefill.identity, "shm", "cma/memory", True, 2.5, 3.0)
    bad = PairReport(WorkerIdentity("prefill-1", "x"), "unknown", "", False, None, 3.0, "why")
    status = WorkerStatus(decode.identity, "decode", pairs=(good, bad))
    fleet = view(prefill, replace(decode, status=status))
    links = WorkerLinks("gateway", "token")
    text = (await FleetMetrics("m", links, JourneyCounters()).text(fleet)).decode()
    labels = 'model_name="m",reader_id="decode-0",source_id="prefill-{}",transport="{}"'
    rate, usable = "segue_kv_pair_bytes_per_second{%s} %s", "segue_kv_pair_usable{%s} %s"
    assert rate % (labels.format(0, "shm"), "2.5e+09") in text
    assert usable % (labels.format(0, "shm"), "1.0") in text
    assert usable % (labels.format(1, "unknown"), "0.0") in text
    assert text.count("segue_kv_pair_bytes_per_second{") == 1
    await links.close()


def rendered(report: dict[str, Any]) -> list[str]:
    console = Console(width=WIDE, no_color=True)
    with console.capture() as capture:
        for part in render(report):
            console.print(part)
    return capture.get().splitlines()


def test_a_worker_that_drains_tells_what_it_waits_for() -> None:
    draining = worker("decode", WorkerState.DRAINING)
    assert draining.status is not None
    status = replace(draining.status, gauges={"attempts": 3.0, "leases": 2.0})
    (told,) = status_report(view(replace(draining, status=status)), 1.0)["workers"]
    assert told["reason"] == "why not: waits for 3 requests, 2 leases"


def test_a_request_that_goes_to_somebody_unheard_is_told_so() -> None:
    fleet = view(worker("prefill"), worker("decode", WorkerState.SUSPECT))
    front = Front(usable=lambda view: list(view.workers), ladder="pairs_only")
    state = readiness(fleet, 0.1, front=front)
    assert state.ready and "degraded" not in state.details
    assert state.details["unheard"] == ("the controller does not hear decode-0: used all the same")
