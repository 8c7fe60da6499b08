"""What a worker says about itself with every heartbeat."""

from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.identity import WorkerIdentity


class WorkerCondition(StrEnum):
    """A worker's own opinion; the registry has the last word (segue.cluster.fleet.WorkerState)."""

    READY = "ready"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    STALLED = "stalled"  # has work but completed no step lately


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Computed from the worker's state at the moment it is asked for."""

    identity: WorkerIdentity
    role: str
    condition: WorkerCondition = WorkerCondition.READY
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    transport: str = ""
    seconds_since_step: float = 0.0
