"""A frame holds what many are told: one delta that is out of order costs its own attempt only."""

from segue.cluster.errors import FailureKind
from segue.cluster.handoff import TokenDelta
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc.frame_codec import deltas_from_pb, deltas_to_pb


def delta(name: str, *tokens: int, position: int = 3) -> TokenDelta:
    return TokenDelta(AttemptId(name, 1), position, tokens, FinishReason.STOP)


def test_what_is_in_order_arrives_as_it_was() -> None:
    deltas = [delta("a", 1, 2), delta("b", 3)]
    assert deltas_from_pb(pb.StepFrame(deltas=deltas_to_pb(deltas))) == deltas


def test_what_cannot_be_told_is_a_failure_of_its_own() -> None:
    deltas = [delta("a", 1), delta("b", -1), delta("c", 2, position=-4), delta("d", 3)]
    told = deltas_from_pb(pb.StepFrame(deltas=deltas_to_pb(deltas)))
    assert [told[0], told[3]] == [deltas[0], deltas[3]]
    for failed, of in ((told[1], "b"), (told[2], "c")):
        assert failed.attempt == AttemptId(of, 1) and not failed.token_ids and not failed.finish
        assert failed.failure is not None and failed.failure.kind is FailureKind.COMPUTE
        assert failed.failure.retryable and "cannot be told" in failed.failure.message


def test_what_cannot_be_read_is_a_failure_of_its_own() -> None:
    frame = pb.StepFrame(deltas=deltas_to_pb([delta("a", 1), delta("b", 2), delta("c", 3)]))
    frame.deltas[0].failure.kind = "of_tomorrow"
    frame.deltas[2].finish = 99  # type: ignore[assignment]
    told = deltas_from_pb(frame)
    assert told[1] == delta("b", 2)
    for failed in (told[0], told[2]):
        assert failed.failure is not None and "cannot be read" in failed.failure.message
    assert "of_tomorrow" in told[0].failure.message  # type: ignore[union-attr]
