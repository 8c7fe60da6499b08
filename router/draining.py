"""How the gateway stops: it takes nothing new, lets answers end, and breaks off what is left."""

import asyncio
from collections.abc import Callable

from segue.cluster.errors import SegueError, Unavailable

STOPPING = "the gateway is stopping"


class Draining:
    """One for an application. Requests are `entered` and `left`; runs register how to break them
    off, which then say so to their clients."""

    def __init__(self) -> None:
        self.has_begun = False
        self._is_over = False
        self._num_inside = 0
        self._runs: set[Callable[[SegueError], None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """From here on nothing new is taken, and /ready is 503; what is known is still answered."""
        self.has_begun = True

    def entered(self) -> None:
        """Raises Unavailable for a request that is too late."""
        if self.has_begun:
            raise Unavailable(STOPPING)
        self._num_inside += 1
        self._idle.clear()

    def left(self) -> None:
        self._num_inside -= 1
        if not self._num_inside:
            self._idle.set()

    def add(self, break_off: Callable[[SegueError], None]) -> None:
        self._runs.add(break_off)
        if self._is_over:  # its request had been read, not begun
            break_off(Unavailable(STOPPING))

    def discard(self, break_off: Callable[[SegueError], None]) -> None:
        self._runs.discard(break_off)

    def break_off(self) -> None:
        """Every run that goes on ends with an error that its client is told."""
        self._is_over = True
        for run in list(self._runs):
            run(Unavailable(STOPPING))

    async def idle(self) -> None:
        """Return when no request is inside any more."""
        await self._idle.wait()
