"""The one tree of errors that Segue raises on purpose; each knows how it is told to a client.

SegueError
|- InvalidRequest            400  the caller's input is wrong; `param` names the field
|  `- ConfigurationError          a configuration file is wrong (never reaches a client)
|- ModelNotFound             404
|- Overloaded                429  the admission queue is full
|- Unavailable               503  no worker can serve the request now; worth retrying
|  `- ConnectionLost              nobody answers at the other end of an internal connection
|- DeadlineExceeded          504  a wait reached its deadline
`- InternalError             500
   |- AttemptFailed               one attempt died; `retryable` says whether another may succeed
   |- TransferError               KV blocks could not be moved
   |- WrongToken                  the process asked is of another deployment
   `- StaleReference              a handle of another incarnation, pool generation or attempt
"""

from enum import StrEnum
from typing import ClassVar


class SegueError(Exception):
    """Base of all errors raised on purpose."""

    http_status: ClassVar[int] = 500
    kind: ClassVar[str] = "InternalServerError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(SegueError):
    http_status = 400
    kind = "BadRequestError"


class ConfigurationError(InvalidRequest):
    kind = "ConfigurationError"


class ModelNotFound(SegueError):
    http_status = 404
    kind = "NotFoundError"


class Overloaded(SegueError):
    """The request was not admitted; the client should retry after `retry_after_seconds`."""

    http_status = 429
    kind = "RateLimitError"

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(SegueError):
    """Nobody can serve the request now; the client should retry after `retry_after_seconds`."""

    http_status = 503
    kind = "ServiceUnavailableError"

    def __init__(self, message: str, *, retry_after_seconds: int = 2) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ConnectionLost(Unavailable):
    """The other process could not be reached, or went away; it has not said so itself."""


class DeadlineExceeded(SegueError):
    http_status = 504
    kind = "TimeoutError"


class InternalError(SegueError):
    pass


class FailureKind(StrEnum):
    """Why one attempt ended without an answer; a label of metrics, so the set is closed."""

    REFUSED = "refused"  # the worker would not take it: bad request, too many, can never fit
    CREDIT_REFUSED = "credit_refused"  # the decode worker would not reserve room
    CREDIT_TIMEOUT = "credit_timeout"
    TRANSFER = "transfer"  # a read failed or a checksum did not match
    FENCED = "fenced"  # the source no longer held the blocks that were read
    PREFLIGHT = "preflight"  # this pair of workers must not hand over: wrong bytes, wrong transport
    PEER_LOST = "peer_lost"  # the other worker of the pair died or restarted
    WORKER_LOST = "worker_lost"  # the connection to the worker broke, or it was declared dead
    DEADLINE = "deadline"
    COMPUTE = "compute"  # this request's own step raised
    BUSY = "busy"  # it is full and has not touched it: no fault of anybody's, and it will pass
    DRAINING = "draining"  # the worker leaves and has not touched it: no fault of anybody's


class AttemptFailed(InternalError):
    """One attempt ended without an answer."""

    def __init__(self, failure: FailureKind, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.failure = failure
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.failure}: {self.message}"


class TransferError(InternalError):
    pass


class WrongToken(InternalError):
    """Whoever was asked knows another cluster token: it belongs to another deployment."""


class StaleKind(StrEnum):
    """What is wrong with a reference; a label of metrics, so the set is closed."""

    INCARNATION = "incarnation"  # to another life of a worker
    ATTEMPT = "attempt"  # of an attempt that is not here, or not here any more
    OWNER = "owner"  # by somebody else than it was given to
    GENERATION = "generation"  # of the pool before its content was dropped
    LEASE = "lease"  # which has expired, was ended, or never opened
    CONTENT = "content"  # to bytes that are not those it was given for


class StaleReference(InternalError):
    def __init__(self, message: str, kind: StaleKind) -> None:
        super().__init__(message)
        self.stale = kind
