"""What a worker says about itself with every heartbeat."""

from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.identity import WorkerIdentity


class WorkerCondition(StrEnum):
    """A worker's own opinion; the registry has the last word (segue.cluster.fleet.WorkerState)."""

    READY = "ready"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    STALLED = "stalled"  # something that has work has not moved lately; it may still
    FAILED = "failed"  # a thread that it can not do without has ended


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Computed from the worker's state at the moment it is asked for."""

    identity: WorkerIdentity
    role: str
    condition: WorkerCondition = WorkerCondition.READY
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    transport: str = ""
    cause: str = ""  # what stalls or failed, and what it was doing
    stuck_seconds: float = 0.0  # how long that has not moved
