"""What became findable, moved or was forgotten, numbered, for whoever keeps a copy of the index.

The log is bounded and drops its oldest events. A reader that missed some is told so, takes a
snapshot, and goes on from the snapshot's number. Only whole blocks are told: a part of a block has
no key by which another process could look it up.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice


class Tier(StrEnum):
    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class StoredBlock:
    key: bytes
    parent: bytes  # of a first block: the key of its root, which names no block
    tier: Tier
    priority: int


@dataclass(frozen=True, slots=True)
class Stored:
    number: int
    blocks: tuple[StoredBlock, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    number: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Updated:
    number: int
    key: bytes
    tier: Tier
    priority: int


KVEvent = Stored | Removed | Updated


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events after the asked-for number. With `gap`, some before them are lost."""

    events: tuple[KVEvent, ...]
    gap: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is findable after event `number`, parents first."""

    number: int
    blocks: tuple[StoredBlock, ...]


class EventLog:
    """Keeps the newest `capacity` events; 0: events are off, and every reader has a gap."""

    def __init__(self, capacity: int) -> None:
        self._events: deque[KVEvent] = deque(maxlen=capacity)
        self.last_number = 0
        self.is_on = capacity > 0

    def stored(self, blocks: Iterable[StoredBlock]) -> None:
        self._append(Stored(self.last_number + 1, tuple(blocks)))

    def removed(self, keys: Iterable[bytes]) -> None:
        self._append(Removed(self.last_number + 1, tuple(keys)))

    def updated(self, key: bytes, tier: Tier, priority: int) -> None:
        self._append(Updated(self.last_number + 1, key, tier, priority))

    def read(self, after: int) -> EventBatch:
        """What happened after event `after`; 0: from the beginning. Does not forget it."""
        missed = self.last_number - after
        if missed < 0:  # the reader followed another life of this worker
            return EventBatch((), gap=True)
        kept = len(self._events)
        found = islice(self._events, max(0, kept - missed), kept)
        return EventBatch(tuple(found), gap=missed > kept)

    def _append(self, event: KVEvent) -> None:
        self.last_number = event.number
        self._events.append(event)


class BlockIndex:
    """A copy of what is findable, made from a snapshot and the events after it."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.number = 0 if snapshot is None else snapshot.number
        self.blocks = {block.key: block for block in snapshot.blocks} if snapshot else {}

    def apply(self, event: KVEvent) -> None:
        """Raises ValueError, and changes nothing, if an event before this one is missing."""
        if event.number != self.number + 1:
            raise ValueError(f"event {event.number} follows {self.number}")
        match event:
            case Stored(_, blocks):
                self.blocks.update({block.key: block for block in blocks})
            case Removed(_, keys):
                for key in keys:
                    del self.blocks[key]
            case Updated(_, key, tier, priority):
                self.blocks[key] = StoredBlock(key, self.blocks[key].parent, tier, priority)
        self.number = event.number


def replay(events: Iterable[KVEvent], start: Snapshot | None = None) -> BlockIndex:
    """The index after `events`, which follow `start` without a gap."""
    index = BlockIndex(start)
    for event in events:
        index.apply(event)
    return index
