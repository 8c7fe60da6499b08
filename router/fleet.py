"""What the fleet view means to the front door: can it serve, why not, and how it is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from segue.cluster.config.gateway import LadderName
from segue.cluster.errors import InvalidRequest
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import PairReport
from segue.router.generation import Readiness
from segue.router.policy import Load, Rung, choose, refusal

CUT_OFF = "this gateway has no connection to it"
STALE_AFTER_SECONDS = 10.0  # a view this old is told as such; its workers are used all the same


Connected = Callable[[WorkerIdentity], bool]


def _always(identity: WorkerIdentity) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Front:
    """What this gateway knows of the fleet beside the view.

    `connected`: whether its link to a worker stands, without which nothing the worker writes would
    arrive. `usable`: the workers that a request may be given to; None: those that are ready and
    connected.
    """

    connected: Connected = _always
    usable: Callable[[FleetView], list[WorkerView]] | None = None
    ladder: LadderName = "full"

    def workers(self, view: FleetView) -> list[WorkerView]:
        if self.usable is not None:
            return self.usable(view)
        return [worker for worker in view.ready_workers() if self.connected(worker.identity)]


def readiness(
    view: FleetView, age_seconds: float, trouble: str = "", front: Front = Front()
) -> Readiness:
    """Ready if a request that came now would be given to somebody: the policy itself is asked.

    Costs what one request's choice does, n log n in the number of workers.
    """
    details = {
        pool.name: f"{pool.ready} of {pool.desired} ready"
        + (f": {pool.reason}" if pool.reason else "")
        for pool in view.pools
    }
    if age_seconds > STALE_AFTER_SECONDS:
        told = f": {trouble}" if trouble else ""
        details["controller"] = f"not heard of for {age_seconds:.0f} s{told}"
    cut_off = [w for w in view.ready_workers() if not front.connected(w.identity)]
    for worker in cut_off:
        details[worker.identity.worker_id] = CUT_OFF
    usable = front.workers(view)
    lacking = _lacking(view, usable, cut_off)
    binding = choose(usable, Load(), (), front.ladder)
    if binding is None:
        return Readiness(False, lacking or refusal(usable, front.ladder), details)
    if binding.rung not in (Rung.DISAGGREGATED, Rung.COLOCATED):
        why = lacking or "no two workers can exchange KV"
        details["degraded"] = f"{why}; requests are served all the same: {binding.rung}"
    if unheard := [w for w in binding.workers if w.state is not WorkerState.READY]:
        names = ", ".join(worker.identity.worker_id for worker in unheard)
        details["unheard"] = f"the controller does not hear {names}: used all the same"
    return Readiness(True, details=details)


def _lacking(view: FleetView, usable: list[WorkerView], cut_off: list[WorkerView]) -> str:
    """Which roles nobody has, and why; empty if none is missing."""
    roles = {worker.role for worker in usable}
    missing = [role for role in ("prefill", "decode") if role not in roles]
    if "both" in roles or not missing:
        return ""
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
    return f"no {' and no '.join(missing)} worker is ready ({'; '.join(reasons)})"


def status_report(
    view: FleetView, age_seconds: float, trouble: str = "", front: Front = Front()
) -> dict[str, Any]:
    """The body of GET /debug/status, which `segue status` prints."""
    state = readiness(view, age_seconds, trouble, front)
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
            _worker_report(worker, age_seconds, front.connected(worker.identity))
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
