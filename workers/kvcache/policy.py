"""What a KV-cache does with the content of blocks that nobody uses: the settings."""

from dataclasses import dataclass

from segue.cluster.retention import DEFAULT_PRIORITY, MAX_PRIORITY


@dataclass(frozen=True, slots=True)
class ReusePolicy:
    """`enabled` False: nothing is reused and nothing is kept.

    With `partial`, a block that agrees in its first tokens only is reused too: copied, or taken
    over where nothing is lost by it. Without `copy_on_partial` only idle leaves are reused so, and
    always taken over. `num_host_slots` 0: no host tier; blocks below `offload_min_priority` are
    never moved there. `event_capacity` 0: no events.
    """

    enabled: bool = True
    partial: bool = True
    copy_on_partial: bool = True
    num_host_slots: int = 0
    offload_min_priority: int = DEFAULT_PRIORITY
    event_capacity: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.offload_min_priority <= MAX_PRIORITY:
            raise ValueError(f"offload_min_priority lies in 0..{MAX_PRIORITY}")
        if self.num_host_slots < 0 or self.event_capacity < 0:
            raise ValueError("num_host_slots and event_capacity must not be negative")
