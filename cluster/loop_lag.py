"""How late an event loop runs what is due: what everybody on it has to wait for everybody else."""

import asyncio
from collections import deque

INTERVAL_S = 0.5
WINDOW_S = 15.0  # a scrape a minute sees a part of the truth only; one of 15 s all of it


class LoopLag:
    """Start and stop it on the loop that is measured; `seconds` may be read from any thread."""

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=int(WINDOW_S / INTERVAL_S))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wait(self._loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    @property
    def seconds(self) -> float:
        """The greatest lag of the last WINDOW_S, that of this moment included; 0: not started."""
        loop = self._loop
        if loop is None:
            return 0.0
        return max(0.0, loop.time() - self._due, *self._late)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + INTERVAL_S
        self._timer = loop.call_at(self._due, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late.append(loop.time() - self._due)
        self._wait(loop)
