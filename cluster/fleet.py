"""The fleet as the controller tells it to gateways: every worker and every pool, at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.config.pool import Role
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.worker_status import WorkerCondition, WorkerStatus


class WorkerState(StrEnum):
    """
    starting -> ready <-> suspect -> dead
                  `-> draining ------^      (any state may go straight to dead, none comes back)
    """

    STARTING = "starting"  # launched, not registered yet
    READY = "ready"  # the only state in which new requests are sent
    SUSPECT = "suspect"  # silent, cut off or stalled; comes back with its next good beat
    DRAINING = "draining"
    DEAD = "dead"


class DeathCause(StrEnum):
    """Why a life ended, in the few words that a metric may have."""

    EXITED = "exited"  # its process is gone: it left, crashed, or was killed
    SILENT = "silent"  # no heartbeat: its process is stopped, cut off, or its event loop hangs
    WEDGED = "wedged"  # it beats, but something in it has not moved for too long
    FAILED = "failed"  # it beats, but a thread that it needs has ended
    NOT_STARTED = "not_started"  # no process came, or it was not ready in time
    MISCONFIGURED = "misconfigured"  # it can not work as it is configured, or installed
    REFUSED = "refused"  # it does not fit the fleet
    DRAINED = "drained"  # it was told to leave, and did: nothing went wrong
    OVERSTAYED = "overstayed"  # it was told to leave, and did not within control.drain_timeout_s
    REPLACED = "replaced"  # another life took its place


@dataclass(frozen=True, slots=True)
class Ending:
    cause: DeathCause
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One life of one worker. `peer` is None until it has registered."""

    identity: WorkerIdentity
    pool: str
    role: Role
    state: WorkerState
    reason: str = ""
    state_seconds: float = 0.0  # since `state` was entered
    peer: Peer | None = None
    pid: int = 0
    status: WorkerStatus | None = None
    restarts: int = 0  # lives before this one, as far as this controller knows
    last_end: str = ""  # why the newest of the ended lives ended
    deaths: Mapping[DeathCause, int] = field(default_factory=dict)  # of all its lives


@dataclass(frozen=True, slots=True)
class PoolView:
    name: str
    role: Role
    desired: int
    ready: int
    reason: str = ""  # why `ready` is below `desired`


@dataclass(frozen=True, slots=True)
class FleetView:
    """A numbered snapshot; numbers grow within one life of the controller."""

    sequence: int = 0
    controller_incarnation: str = ""
    workers: tuple[WorkerView, ...] = ()
    pools: tuple[PoolView, ...] = field(default_factory=tuple)

    def ready_workers(self, *roles: Role) -> tuple[WorkerView, ...]:
        """Workers that take new requests, of any of `roles` (all if none is given)."""
        return tuple(
            worker
            for worker in self.workers
            if worker.state is WorkerState.READY and (not roles or worker.role in roles)
        )

    def silent_workers(self) -> tuple[WorkerView, ...]:
        """Workers of which nothing is known but that the controller does not hear them."""
        return tuple(
            worker
            for worker in self.workers
            if worker.state is WorkerState.SUSPECT
            and (worker.status is None or worker.status.condition is WorkerCondition.READY)
        )

    def find(self, identity: WorkerIdentity) -> WorkerView | None:
        return next((worker for worker in self.workers if worker.identity == identity), None)


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom a worker may have to read KV from: those that read prompts for it, with every request;
    those that write answers, if one moves here."""

    of_prompts: tuple[Peer, ...] = ()
    of_answers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says when it is able to serve."""

    peer: Peer
    pool: str
    role: Role
    fingerprint: dict[str, str]
    pid: int


@dataclass(frozen=True, slots=True)
class RegistrationVerdict:
    """A refusal is for good: the worker leaves."""

    accepted: bool
    reason: str = ""
