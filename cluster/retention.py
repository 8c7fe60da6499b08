"""How long KV is worth keeping: a request's token ranges with priorities, mapped to blocks."""

from dataclasses import dataclass

from segue.cluster.errors import InvalidRequest

DEFAULT_PRIORITY = 35
MAX_PRIORITY = 100
MAX_RANGES = 32  # every block is compared with each of them
FIELD = "kv_cache_retention_config"  # the public field that it comes from


@dataclass(frozen=True, slots=True)
class BlockRetention:
    """Of one block. `priority` None: what the block has already, or else the default."""

    priority: int | None = None
    duration: float | None = None  # seconds from release, then the default priority; None: ever


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """Prompt tokens [start, end); `end` None: to the prompt's end."""

    start: int
    end: int | None
    priority: int
    duration: float | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """What a request wants kept. A block takes the range that holds its first token."""

    ranges: tuple[RetentionRange, ...] = ()
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration: float | None = None

    def __post_init__(self) -> None:
        if len(self.ranges) > MAX_RANGES:
            raise _invalid(f"at most {MAX_RANGES} token ranges, got {len(self.ranges)}")
        previous_end: int | None = 0
        for item in self.ranges:
            _check_priority(item.priority)
            _check_duration(item.duration)
            if previous_end is None or item.start < previous_end:
                raise _invalid("token ranges must be sorted and disjoint, only the last one open")
            if item.end is not None and item.end <= item.start:
                raise _invalid(f"token range [{item.start}, {item.end}) is empty")
            previous_end = item.end
        _check_priority(self.decode_priority)
        _check_duration(self.decode_duration)

    def of_block(self, first_token: int, num_prompt_tokens: int) -> BlockRetention:
        """Of the block that begins with token `first_token`."""
        if first_token >= num_prompt_tokens:
            return BlockRetention(self.decode_priority, self.decode_duration)
        for item in self.ranges:
            if item.start <= first_token and (item.end is None or first_token < item.end):
                return BlockRetention(item.priority, item.duration)
        return BlockRetention()


def _check_priority(priority: int) -> None:
    if not 0 <= priority <= MAX_PRIORITY:
        raise _invalid(f"a priority lies in 0..{MAX_PRIORITY}, got {priority}")


def _check_duration(duration: float | None) -> None:
    if duration is not None and not duration > 0:
        raise _invalid(f"a duration must be positive, got {duration}")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(f"{FIELD}: {message}", param=FIELD)


NOTHING_SPECIAL = Retention()
