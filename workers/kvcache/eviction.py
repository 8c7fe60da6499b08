"""Which idle content goes first: the lowest priority, and within one the longest released.

Every operation costs the same whatever is in the queue (expiry: a logarithm of what expires).
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from segue.cluster.retention import DEFAULT_PRIORITY, MAX_PRIORITY


class EvictionQueue:
    """Items are numbers of blocks or slots, each at most once. Order of release, nothing else:
    looking an item up does not refresh it."""

    def __init__(self) -> None:
        self._levels: list[OrderedDict[int, None]] = [
            OrderedDict() for _ in range(MAX_PRIORITY + 1)
        ]
        self._default = self._levels[DEFAULT_PRIORITY]
        self._priority: dict[int, int] = {}  # of items with another one than the default
        self._occupied = 0  # bit p is set: level p is not empty; not kept for the default
        self._expires_at: dict[int, float] = {}
        self._expiries: list[tuple[float, int]] = []  # a heap; entries may be out of date

    def __len__(self) -> int:
        return len(self._default) + len(self._priority)

    def __contains__(self, item: int) -> bool:
        return item in self._default or item in self._priority

    def __iter__(self) -> Iterator[int]:
        """From the next victim to the last."""
        for level in self._levels:
            yield from level

    def add(self, item: int, priority: int, expires_at: float | None = None) -> None:
        """Queue an item that is released now. Raises ValueError if it is queued already."""
        if item in self._default or item in self._priority:
            raise ValueError(f"{item} is queued already")
        self._levels[priority][item] = None
        if priority == DEFAULT_PRIORITY:
            return
        self._priority[item] = priority
        self._occupied |= 1 << priority
        if expires_at is not None:
            self._expires_at[item] = expires_at
            heapq.heappush(self._expiries, (expires_at, item))
            if len(self._expiries) > 2 * len(self._expires_at) + 64:
                self._expiries = [(when, known) for known, when in self._expires_at.items()]
                heapq.heapify(self._expiries)

    def add_default(self, items: Iterable[int]) -> None:
        """As `add` of each with the default priority."""
        default = self._default
        before = len(default)
        count = 0
        for item in items:
            default[item] = None
            count += 1
        if len(default) != before + count:
            raise ValueError("an item is queued already")

    def remove(self, item: int) -> None:
        """Take out an item that is claimed or was chosen. Raises KeyError if it is not queued."""
        priority = self._priority.pop(item, None)
        if priority is None:
            del self._default[item]
            return
        level = self._levels[priority]
        del level[item]
        if not level:
            self._occupied &= ~(1 << priority)
        self._expires_at.pop(item, None)

    def victim(self) -> int | None:
        """The item to give up next; it stays queued."""
        for item in self._first_level():
            return item
        return None

    def take(self, count: int) -> list[int]:
        """Take out the `count` items to give up next. Raises KeyError if there are fewer."""
        if not self._priority:
            take = self._default.popitem
            return [take(last=False)[0] for _ in range(count)]
        taken: list[int] = []
        for _ in range(count):
            item = self.victim()
            if item is None:
                raise KeyError("the queue is empty")
            self.remove(item)
            taken.append(item)
        return taken

    def _first_level(self) -> OrderedDict[int, None]:
        """The lowest level that is not empty; an empty one if all are."""
        lowest = (self._occupied & -self._occupied).bit_length() - 1
        if lowest < 0 or (self._default and DEFAULT_PRIORITY < lowest):
            return self._default
        return self._levels[lowest]

    def expire(self, now: float) -> list[int]:
        """Move what has expired to the back of the default priority; returns those items."""
        moved: list[int] = []
        while self._expiries and self._expiries[0][0] <= now:
            when, item = heapq.heappop(self._expiries)
            if self._expires_at.get(item) == when:
                self.remove(item)
                self.add(item, DEFAULT_PRIORITY)
                moved.append(item)
        return moved

    def check_integrity(self) -> None:
        """Raise AssertionError unless every item is in exactly the level it is counted in."""
        assert sum(map(len, self._levels)) == len(self)
        for priority, level in enumerate(self._levels):
            if level is self._default:
                assert self._priority.keys().isdisjoint(level)
                continue
            assert bool(level) == bool(self._occupied >> priority & 1)
            assert all(self._priority[item] == priority for item in level)
        assert self._expires_at.keys() <= self._priority.keys()
        assert len(self._expiries) <= 2 * len(self._expires_at) + 64 + len(self)
