"""What one request carries from attempt to attempt, and from worker to worker."""

from dataclasses import dataclass, field

from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.cluster.request import GenerationRequest, TokenLog
from segue.router.flight import Flight


@dataclass(slots=True, eq=False)
class Progress:
    """Every attempt has a number of its own; a move takes one too, but is no new try, nor is an
    attempt that a worker refused because it leaves or is full."""

    request: GenerationRequest
    log: TokenLog
    arrived: float
    deadline: float
    tries: int = 0
    newest_attempt: int = 0
    failed_on: set[WorkerIdentity] = field(default_factory=set)
    full_since: float | None = None  # no worker has had room for it since then
    flight: Flight | None = None  # None: between two attempts

    def next_attempt(self) -> AttemptId:
        self.newest_attempt += 1
        return AttemptId(self.request.request_id, self.newest_attempt)
