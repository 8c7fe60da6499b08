"""Packs and unpacks frames: a delta that cannot be told, or read, costs its own attempt only."""

import logging
from collections.abc import Iterable, Iterator

from segue.cluster.errors import FailureKind
from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.identity import AttemptId
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc.codec import delta_from_pb, delta_to_pb

logger = logging.getLogger(__name__)


def deltas_to_pb(deltas: Iterable[TokenDelta]) -> Iterator[pb.TokenDelta]:
    for delta in deltas:
        try:
            yield delta_to_pb(delta)
        except Exception as error:
            logger.exception("cannot tell %s", delta)
            failure = Failure(FailureKind.COMPUTE, f"its tokens cannot be told: {error!r}")
            yield delta_to_pb(TokenDelta(delta.attempt, max(0, delta.position), failure=failure))


def deltas_from_pb(frame: pb.StepFrame) -> list[TokenDelta]:
    return [_read(message) for message in frame.deltas]


def _read(message: pb.TokenDelta) -> TokenDelta:
    try:
        return delta_from_pb(message)
    except Exception as error:  # from a worker of another version, say
        logger.warning("cannot read %s: %r", message, error)
        failure = Failure(FailureKind.COMPUTE, f"what the worker said cannot be read: {error!r}")
        attempt = AttemptId(message.attempt.request_id, message.attempt.attempt)
        return TokenDelta(attempt, message.position, failure=failure)
