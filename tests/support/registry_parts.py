"""Lives of workers as a registry hears of them."""

from segue.cluster.config.control import ControlConfig
from segue.cluster.fleet import Registration
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.registry import Registry
from segue.cluster.worker_status import WorkerCondition, WorkerStatus

CONTROL = ControlConfig(
    heartbeat_s=0.5,
    suspect_after_s=2.0,
    dead_after_s=10.0,
    stalled_after_s=5.0,
    wedged_after_s=30.0,
)
SAME = {"block_size": "16", "dtype": "float32"}


def life(number: int, worker_id: str = "decode-0") -> WorkerIdentity:
    return WorkerIdentity(worker_id, f"life-{number}")


def registration(identity: WorkerIdentity, **changed: str) -> Registration:
    # One address for all: the registry must never tell workers apart by it.
    return Registration(Peer(identity, "10.0.0.1:7"), "decode", "decode", SAME | changed, 42)


def status(
    identity: WorkerIdentity, condition: str = "ready", stuck_seconds: float = 0.0
) -> WorkerStatus:
    cause = "" if condition == "ready" else "the engine thread sleeps"
    return WorkerStatus(
        identity,
        "decode",
        WorkerCondition(condition),
        cause=cause,
        stuck_seconds=stuck_seconds,
    )


def registered(*identities: WorkerIdentity) -> Registry:
    registry = Registry(CONTROL, "controller")
    for identity in identities:
        assert registry.register(registration(identity), 0.0).accepted
    return registry
