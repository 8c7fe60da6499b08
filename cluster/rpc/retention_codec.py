"""Translates what a request wants kept between its dataclass and its protobuf message."""

from segue.cluster.retention import Retention, RetentionRange
from segue.cluster.rpc import serving_pb2 as pb

NOTHING_SPECIAL = Retention()


def retention_to_pb(retention: Retention) -> pb.Retention | None:
    """None is not sent: most requests want nothing special."""
    if retention == NOTHING_SPECIAL:
        return None
    ranges = [
        pb.RetentionRange(
            start=item.start,
            end=item.end,
            priority=item.priority,
            duration_seconds=item.duration,
        )
        for item in retention.ranges
    ]
    return pb.Retention(
        ranges=ranges,
        decode_priority=retention.decode_priority,
        decode_duration_seconds=retention.decode_duration,
    )


def retention_from_pb(message: pb.Retention) -> Retention:
    """Raises InvalidRequest, as the dataclass does."""
    ranges = tuple(
        RetentionRange(
            item.start,
            item.end if item.HasField("end") else None,
            item.priority,
            item.duration_seconds if item.HasField("duration_seconds") else None,
        )
        for item in message.ranges
    )
    has_duration = message.HasField("decode_duration_seconds")
    duration = message.decode_duration_seconds if has_duration else None
    return Retention(ranges, message.decode_priority, duration)
