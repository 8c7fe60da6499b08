"""Translates between the dataclasses of cluster/fleet.py and the Controller service's messages."""

from enum import StrEnum
from typing import TypeVar, get_args

from segue.cluster.config.pool import Role
from segue.cluster.errors import InvalidRequest
from segue.cluster.fleet import (
    DeathCause,
    FleetView,
    PoolView,
    Registration,
    WorkerState,
    WorkerView,
)
from segue.cluster.identity import Peer
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc.codec import identity_from_pb, identity_to_pb, peer_from_pb, peer_to_pb
from segue.cluster.worker_status import PairReport, WorkerCondition, WorkerStatus

Word = TypeVar("Word", bound=StrEnum)
_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}


def status_to_pb(status: WorkerStatus) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        identity=identity_to_pb(status.identity),
        role=status.role,
        state=status.condition.value,
        gauges=status.gauges,
        counters=status.counters,
        transport=status.transport,
        cause=status.cause,
        stuck_seconds=status.stuck_seconds,
        pairs=[_pair_to_pb(pair) for pair in status.pairs],
    )


def status_from_pb(message: pb.WorkerStatus) -> WorkerStatus:
    return WorkerStatus(
        identity_from_pb(message.identity),
        message.role,
        _word(WorkerCondition, message.state),
        dict(message.gauges),
        dict(message.counters),
        message.transport,
        message.cause,
        message.stuck_seconds,
        tuple(_pair_from_pb(pair) for pair in message.pairs),
    )


def _pair_to_pb(pair: PairReport) -> pb.PairReport:
    return pb.PairReport(
        source=identity_to_pb(pair.source),
        transport=pair.transport,
        detail=pair.detail,
        is_measured=pair.is_measured,
        gigabytes_per_second=pair.gigabytes_per_second,
        seconds_ago=pair.seconds_ago,
        refusal=pair.refusal,
        retry_seconds=pair.retry_seconds,
    )


def _pair_from_pb(message: pb.PairReport) -> PairReport:
    has_rate = message.HasField("gigabytes_per_second")
    return PairReport(
        identity_from_pb(message.source),
        message.transport,
        message.detail,
        message.is_measured,
        message.gigabytes_per_second if has_rate else None,
        message.seconds_ago,
        message.refusal,
        message.retry_seconds,
    )


def registration_to_pb(registration: Registration) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        peer=peer_to_pb(registration.peer),
        pool=registration.pool,
        role=registration.role,
        fingerprint=registration.fingerprint,
        pid=registration.pid,
    )


def registration_from_pb(message: pb.RegisterRequest) -> Registration:
    return Registration(
        peer_from_pb(message.peer),
        message.pool,
        _role(message.role),
        dict(message.fingerprint),
        message.pid,
    )


def fleet_to_pb(view: FleetView) -> pb.FleetSnapshot:
    return pb.FleetSnapshot(
        sequence=view.sequence,
        controller_incarnation=view.controller_incarnation,
        workers=[_worker_to_pb(worker) for worker in view.workers],
        pools=[
            pb.PoolRecord(
                name=pool.name,
                role=pool.role,
                desired=pool.desired,
                ready=pool.ready,
                reason=pool.reason,
            )
            for pool in view.pools
        ],
    )


def fleet_from_pb(message: pb.FleetSnapshot) -> FleetView:
    return FleetView(
        message.sequence,
        message.controller_incarnation,
        tuple(_worker_from_pb(worker) for worker in message.workers),
        tuple(
            PoolView(pool.name, _role(pool.role), pool.desired, pool.ready, pool.reason)
            for pool in message.pools
        ),
    )


def _worker_to_pb(worker: WorkerView) -> pb.WorkerRecord:
    peer = worker.peer or Peer(worker.identity, "")
    record = pb.WorkerRecord(
        peer=peer_to_pb(peer),
        pool=worker.pool,
        role=worker.role,
        state=worker.state.value,
        reason=worker.reason,
        state_seconds=worker.state_seconds,
        pid=worker.pid,
        restarts=worker.restarts,
        last_end=worker.last_end,
        deaths={cause.value: count for cause, count in worker.deaths.items()},
    )
    if worker.status is not None:
        record.status.CopyFrom(status_to_pb(worker.status))
    return record


def _worker_from_pb(message: pb.WorkerRecord) -> WorkerView:
    identity = identity_from_pb(message.peer.identity)
    return WorkerView(
        identity,
        message.pool,
        _role(message.role),
        _word(WorkerState, message.state),
        message.reason,
        message.state_seconds,
        Peer(identity, message.peer.address) if message.peer.address else None,
        message.pid,
        status_from_pb(message.status) if message.HasField("status") else None,
        message.restarts,
        message.last_end,
        {_word(DeathCause, cause): count for cause, count in message.deaths.items()},
    )


def _role(text: str) -> Role:
    if text not in _ROLES:
        raise InvalidRequest(f"unknown role '{text}'")
    return _ROLES[text]


def _word(kind: type[Word], text: str) -> Word:
    try:
        return kind(text)
    except ValueError:
        raise InvalidRequest(f"unknown {kind.__name__} '{text}'") from None
