"""What a request may ask for at the cost of others, held against the operator's bounds.

Nothing is cut to the bound or left out without a word: what exceeds it is refused by name.
"""

from segue.cluster.config.client_bounds import ClientBounds
from segue.cluster.errors import InvalidRequest
from segue.cluster.retention import DEFAULT_PRIORITY, FIELD, Retention, RetentionRange
from segue.router.api_types import KVCacheRetention

_RANGES = f"{FIELD}.token_range_retention_configs"


def bounded_priority(asked: int | None, bounds: ClientBounds) -> int:
    """Raises InvalidRequest if the server orders requests otherwise, or not as far."""
    if not asked:
        return 0
    if bounds.scheduling_policy == "fcfs":
        raise _refused(
            "priority",
            f"must be 0 or absent, got {asked}: this server serves requests in the order of "
            "arrival (gateway.client_bounds.scheduling_policy is fcfs)",
        )
    if not bounds.min_priority <= asked <= bounds.max_priority:
        allowed = f"{bounds.min_priority} to {bounds.max_priority}"
        raise _refused("priority", f"this server takes {allowed}, got {asked}")
    return asked


def bounded_retention(asked: KVCacheRetention | None, bounds: ClientBounds) -> Retention:
    """Raises InvalidRequest if it exceeds the bounds, or its ranges are not in order."""
    if asked is None:
        return Retention()
    ranges: list[RetentionRange] = []
    for index, item in enumerate(asked.token_range_retention_configs):
        place = f"{_RANGES}.{index}."
        duration = _bounded_duration(
            item.priority, item.duration_ms, bounds, f"{place}priority", f"{place}duration_ms"
        )
        ranges.append(RetentionRange(item.token_start, item.token_end, item.priority, duration))
    decode_duration = _bounded_duration(
        asked.decode_retention_priority,
        asked.decode_duration_ms,
        bounds,
        f"{FIELD}.decode_retention_priority",
        f"{FIELD}.decode_duration_ms",
    )
    return Retention(tuple(ranges), asked.decode_retention_priority, decode_duration)


def _bounded_duration(
    priority: int,
    duration_ms: int | None,
    bounds: ClientBounds,
    priority_field: str,
    duration_field: str,
) -> float | None:
    """Seconds. A priority that is not above the default costs nobody else anything."""
    duration = None if duration_ms is None else duration_ms / 1000
    if priority <= DEFAULT_PRIORITY:
        return duration
    if priority > bounds.max_retention_priority:
        most = bounds.max_retention_priority
        raise _refused(priority_field, f"this server takes at most {most}, got {priority}")
    longest = bounds.max_retention_s
    if duration is None:
        return longest
    if longest is not None and duration > longest:
        raise _refused(
            duration_field,
            f"this server takes at most {longest * 1000:.0f} with a priority above "
            f"{DEFAULT_PRIORITY}, got {duration_ms}",
        )
    return duration


def _refused(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {message}", param=field)
