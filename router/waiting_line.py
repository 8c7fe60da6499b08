"""A line of those who wait for the same thing, by arrival: only the first need look for it."""

import asyncio
import heapq
from dataclasses import dataclass, field


@dataclass(order=True, slots=True)
class Place:
    arrived: float
    number: int  # of two who arrived at once the first to stand in line is first
    moved_up: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    has_left: bool = field(default=False, compare=False)

    async def wait(self, seconds: float) -> None:
        """Until it may have become the first, or for `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.moved_up.wait()
        except TimeoutError:
            pass
        self.moved_up.clear()


class WaitingLine:
    def __init__(self) -> None:
        self._places: list[Place] = []  # a heap; those that have left go when they come up
        self._num_joined = self._num_left = 0

    def __len__(self) -> int:
        return self._num_joined - self._num_left

    def join(self, arrived: float) -> Place:
        """Whoever joins leaves."""
        self._num_joined += 1
        place = Place(arrived, self._num_joined)
        heapq.heappush(self._places, place)
        return place

    def is_first(self, place: Place) -> bool:
        return self._first() is place

    def leave(self, place: Place) -> None:
        place.has_left = True
        self._num_left += 1
        first = self._first()
        if first is not None:
            first.moved_up.set()

    def _first(self) -> Place | None:
        while self._places and self._places[0].has_left:
            heapq.heappop(self._places)
        return self._places[0] if self._places else None
