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
class PairReport:
    """How the preflight of this worker, as the reader, with a `source` went."""

    source: WorkerIdentity
    transport: str  # rdma, nvlink, shm, tcp, loopback, unknown
    detail: str  # the same in the words of the transport
    is_measured: bool  # the transport itself said so; else it is the likeliest
    gigabytes_per_second: float | None  # None: nothing that could be trusted was read
    seconds_ago: float
    refusal: str = ""  # why no KV is read from there; empty: the pair may be used
    retry_seconds: float = 0.0  # until a refused pair is tried again

    @property
    def is_refused(self) -> bool:
        return bool(self.refusal)


@dataclass(frozen=True, slots=True)
class UsualAnswer:
    """What nine in ten of the latest answers stayed within."""

    tokens: int
    share: float  # of their limits


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
    pairs: tuple[PairReport, ...] = ()  # heartbeats hold the refused ones only

    @property
    def usual_answer(self) -> UsualAnswer | None:
        """What this worker's own answers taught it; None: nothing yet, or it does not learn."""
        length = self.gauges.get("expected_output_tokens")
        share = self.gauges.get("expected_output_share")
        return None if length is None or share is None else UsualAnswer(int(length), share)

    @property
    def refused_sources(self) -> frozenset[WorkerIdentity]:
        """From whom this worker reads no KV."""
        return frozenset(pair.source for pair in self.pairs if pair.is_refused)
