"""Translates the order to move a running attempt, and the report of it."""

from segue.cluster.handoff import MigrationOrder, MigrationReport
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc import codec
from segue.cluster.rpc import serving_pb2 as pb


def migration_to_pb(target: WorkerIdentity, order: MigrationOrder) -> pb.MigrateRequest:
    return pb.MigrateRequest(
        target=codec.identity_to_pb(target),
        attempt=codec.attempt_to_pb(order.attempt),
        destination=codec.peer_to_pb(order.destination),
        new_attempt=order.new_attempt,
        known_position=order.known_position,
    )


def migration_from_pb(message: pb.MigrateRequest) -> MigrationOrder:
    return MigrationOrder(
        codec.attempt_from_pb(message.attempt),
        codec.peer_from_pb(message.destination),
        message.new_attempt,
        message.known_position,
    )


def migration_report_to_pb(report: MigrationReport) -> pb.MigrateReply:
    return pb.MigrateReply(
        num_tokens=report.num_tokens,
        num_blocks=report.num_blocks,
        num_bytes=report.num_bytes,
        num_blocks_stopped=report.num_blocks_stopped,
        stopped_seconds=report.stopped_seconds,
    )


def migration_report_from_pb(message: pb.MigrateReply) -> MigrationReport:
    return MigrationReport(
        message.num_tokens,
        message.num_blocks,
        message.num_bytes,
        message.num_blocks_stopped,
        message.stopped_seconds,
    )
