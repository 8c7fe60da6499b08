"""Maps Segue's errors to gRPC status codes and back, so that an error keeps its type on the wire.

The class travels in trailing metadata; the status code alone is what is left when the error was
raised by gRPC itself (connection lost, deadline reached).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import grpc
import grpc.aio

from segue.cluster.errors import (
    AttemptFailed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    FailureKind,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    SegueError,
    StaleKind,
    StaleReference,
    TransferError,
    Unavailable,
    WrongToken,
)

CLASS_KEY = "segue-error"
PARAM_KEY = "segue-param-bin"
RETRY_AFTER_KEY = "segue-retry-after"
FAILURE_KEY = "segue-failure"
RETRYABLE_KEY = "segue-retryable"
STALE_KEY = "segue-stale"
MAX_DETAILS = 2000  # characters; trailing metadata as a whole is limited to 8 KiB

_CODES: dict[type[SegueError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    StaleReference: grpc.StatusCode.FAILED_PRECONDITION,
    AttemptFailed: grpc.StatusCode.ABORTED,
    TransferError: grpc.StatusCode.INTERNAL,
    InternalError: grpc.StatusCode.INTERNAL,
}
_CLASSES = {cls.__name__: cls for cls in _CODES}
# What gRPC itself reports. A server that stops cancels its calls: the same as being away.
_LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


@dataclass(frozen=True, slots=True)
class RpcStatus:
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()


def to_status(error: SegueError) -> RpcStatus:
    known = next((cls for cls in type(error).__mro__ if cls in _CODES), InternalError)
    extra: list[tuple[str, str | bytes]] = [(CLASS_KEY, known.__name__)]
    if error.param is not None:
        extra.append((PARAM_KEY, error.param[:200].encode()))
    if isinstance(error, Overloaded | Unavailable):
        extra.append((RETRY_AFTER_KEY, str(error.retry_after_seconds)))
    message = error.message
    if isinstance(error, AttemptFailed):
        extra.append((FAILURE_KEY, error.failure.value))
        extra.append((RETRYABLE_KEY, "1" if error.retryable else "0"))
    if isinstance(error, StaleReference):
        extra.append((STALE_KEY, error.stale.value))
    return RpcStatus(_CODES[known], message[:MAX_DETAILS], tuple(extra))


def from_status(
    code: grpc.StatusCode, details: str, extra: Mapping[str, str | bytes]
) -> SegueError:
    """The inverse of `to_status`; also types what gRPC reports by itself."""
    cls = _CLASSES.get(_text(extra, CLASS_KEY))
    if cls is AttemptFailed:
        failure = _failure_kind(_text(extra, FAILURE_KEY))
        return AttemptFailed(failure, details, retryable=_text(extra, RETRYABLE_KEY) != "0")
    if cls is StaleReference:
        return StaleReference(details, _stale_kind(_text(extra, STALE_KEY)))
    if cls is Overloaded or cls is Unavailable:
        retry_after = _text(extra, RETRY_AFTER_KEY)
        return cls(details, retry_after_seconds=int(retry_after) if retry_after.isdigit() else 2)
    if cls is not None:
        return cls(details, param=_text(extra, PARAM_KEY) or None)
    if code in _LOST:
        return ConnectionLost(f"connection lost: {details}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(details)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return WrongToken(details)
    return InternalError(f"{code.name}: {details}")


def from_rpc_error(error: grpc.aio.AioRpcError) -> SegueError:
    """Type a failed call. Raise the result `from` the error, so that the cause is kept."""
    pairs = cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata() or ())
    return from_status(error.code(), error.details() or "", dict(pairs))


def _text(extra: Mapping[str, str | bytes], key: str) -> str:
    value = extra.get(key, "")
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _failure_kind(text: str) -> FailureKind:
    return FailureKind(text) if text in set(FailureKind) else FailureKind.COMPUTE


def _stale_kind(text: str) -> StaleKind:
    return StaleKind(text) if text in set(StaleKind) else StaleKind.ATTEMPT
