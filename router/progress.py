"""What one request carries from attempt to attempt, and from worker to worker."""

from dataclasses import dataclass, field

from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.cluster.request import GenerationRequest, TokenLog
from segue.router.flight import Flight


@dataclass(slots=True, eq=False)
class Progress:
    """Every attempt has a number of its own; a move takes one too, but is no new try, nor is an
    attempt that a worker refused because it leaves."""

    request: GenerationRequest
    log: TokenLog
    deadline: float
    tries: int = 0
    newest_attempt: int = 0
    failed_on: set[WorkerIdentity] = field(default_factory=set)
    flight: Flight | None = None  # None: between two attempts

    def next_attempt(self) -> AttemptId:
        self.newest_attempt += 1
        return AttemptId(self.request.request_id, self.newest_attempt)
