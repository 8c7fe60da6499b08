"""Translates the order to ask another decode worker for a credit, and the report of it."""

from segue.cluster.handoff import RebindOrder, RebindOutcome, RebindReport
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc import codec
from segue.cluster.rpc import serving_pb2 as pb


def rebind_to_pb(target: WorkerIdentity, order: RebindOrder) -> pb.RebindRequest:
    return pb.RebindRequest(
        target=codec.identity_to_pb(target),
        attempt=codec.attempt_to_pb(order.attempt),
        decode=codec.peer_to_pb(order.decode),
        wait_seconds=order.wait_seconds,
    )


def rebind_from_pb(message: pb.RebindRequest) -> RebindOrder:
    return RebindOrder(
        codec.attempt_from_pb(message.attempt),
        codec.peer_from_pb(message.decode),
        message.wait_seconds,
    )


def rebind_report_to_pb(report: RebindReport) -> pb.RebindReply:
    return pb.RebindReply(outcome=report.outcome.value, reason=report.reason)


def rebind_report_from_pb(message: pb.RebindReply) -> RebindReport:
    return RebindReport(RebindOutcome(message.outcome), message.reason)
