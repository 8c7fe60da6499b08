"""What the fleet view means to the front door: can it serve, why not, and how it is shown."""

from collections.abc import Callable
from typing import Any

from segue.cluster.errors import InvalidRequest
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import PairReport
from segue.router.generation import Readiness

CUT_OFF = "this gateway has no connection to it"
STALE_AFTER_SECONDS = 10.0  # a view this old is told as such; its workers are used all the same


Connected = Callable[[WorkerIdentity], bool]


def _always(identity: WorkerIdentity) -> bool:
    return True


def readiness(
    view: FleetView, age_seconds: float, trouble: str = "", connected: Connected = _always
) -> Readiness:
    """Ready with a prefill and a decode worker, or with one that is both.

    `connected` says whether this gateway's link to a worker stands: without it nothing the worker
    writes would arrive.
    """
    details = {
        pool.name: f"{pool.ready} of {pool.desired} ready"
        + (f": {pool.reason}" if pool.reason else "")
        for pool in view.pools
    }
    if age_seconds > STALE_AFTER_SECONDS:
        told = f": {trouble}" if trouble else ""
        details["controller"] = f"not heard of for {age_seconds:.0f} s{told}"
    ready = view.ready_workers()
    cut_off = [worker for worker in ready if not connected(worker.identity)]
    for worker in cut_off:
        details[worker.identity.worker_id] = CUT_OFF
    roles = {worker.role for worker in ready if worker not in cut_off}
    if "both" in roles:
        return Readiness(True, details=details)
    missing = [role for role in ("prefill", "decode") if role not in roles]
    if not missing:
        return Readiness(True, details=details)
    reasons = [
        f"pool {pool.name}: {pool.reason or 'no replica is asked for'}"
        for pool in view.pools
        if not pool.ready and pool.role in (*missing, "both")
    ]
    reasons += [
        f"{worker.identity.worker_id}: {CUT_OFF}"
        for worker in cut_off
        if worker.role in (*missing, "both")
    ]
    if not view.pools:
        reasons = ["the controller has not told of any worker yet"]
    text = f"no {' and no '.join(missing)} worker is ready ({'; '.join(reasons)})"
    return Readiness(False, text, details)


def status_report(
    view: FleetView, age_seconds: float, trouble: str = "", connected: Connected = _always
) -> dict[str, Any]:
    """The body of GET /debug/status, which `segue status` prints."""
    state = readiness(view, age_seconds, trouble, connected)
    return {
        "ready": state.ready,
        "reason": state.reason,
        "controller": {
            "incarnation": view.controller_incarnation,
            "view_sequence": view.sequence,
            "view_age_seconds": round(age_seconds, 3),
            "trouble": trouble,
        },
        "pools": [
            {
                "name": pool.name,
                "role": pool.role,
                "desired": pool.desired,
                "ready": pool.ready,
                "reason": pool.reason,
            }
            for pool in view.pools
        ],
        "workers": [
            _worker_report(worker, age_seconds, connected(worker.identity))
            for worker in view.workers
        ],
        "pairs": [
            _pair_report(pair, worker)
            for worker in view.workers
            if worker.status is not None and worker.state is not WorkerState.DEAD
            for pair in worker.status.pairs
        ],
    }


def _pair_report(pair: PairReport, reader: WorkerView) -> dict[str, Any]:
    rate = pair.gigabytes_per_second
    return {
        "source": pair.source.worker_id,
        "source_incarnation": pair.source.incarnation,
        "reader": reader.identity.worker_id,
        "reader_incarnation": reader.identity.incarnation,
        "transport": pair.transport,
        "detail": pair.detail,
        "measured": pair.is_measured,
        "gigabytes_per_second": None if rate is None else round(rate, 3),
        "seconds_ago": round(pair.seconds_ago, 1),
        "refusal": pair.refusal,
        "retry_seconds": round(pair.retry_seconds, 1),
    }


def _worker_report(worker: WorkerView, age_seconds: float, connected: bool) -> dict[str, Any]:
    status = worker.status if worker.state is not WorkerState.DEAD else None
    return {
        "id": worker.identity.worker_id,
        "incarnation": worker.identity.incarnation,
        "pool": worker.pool,
        "role": worker.role,
        "state": worker.state.value,
        "reason": _reason(worker, connected),
        "state_seconds": round(worker.state_seconds + age_seconds, 1),
        "pid": worker.pid,
        "restarts": worker.restarts,
        "last_end": worker.last_end,
        "deaths": {cause.value: count for cause, count in worker.deaths.items()},
        "address": worker.peer.address if worker.peer else None,
        "transport": status.transport if status else None,
        "gauges": status.gauges if status else {},
        "counters": status.counters if status else {},
    }


def _reason(worker: WorkerView, connected: bool) -> str:
    """With what it waits for, if it drains."""
    if worker.state is WorkerState.READY and not connected:
        return worker.reason or CUT_OFF
    if worker.state is not WorkerState.DRAINING or worker.status is None:
        return worker.reason
    gauges = worker.status.gauges
    requests, leases = gauges.get("attempts", 0.0), gauges.get("leases", 0.0)
    return f"{worker.reason}: waits for {requests:.0f} requests, {leases:.0f} leases"


def find_worker(view: FleetView, worker_id: str) -> WorkerView:
    """Raises InvalidRequest that lists the workers if there is none of that name."""
    living = [w for w in view.workers if w.state is not WorkerState.DEAD]
    found = [w for w in living if w.identity.worker_id == worker_id]
    if not found:
        names = ", ".join(sorted(w.identity.worker_id for w in living)) or "none"
        raise InvalidRequest(
            f"no worker is called '{worker_id}'; there are: {names}", param="worker"
        )
    return found[0]
