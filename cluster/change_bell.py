"""Wakes tasks of one event loop when something changed, without losing or queueing changes."""

import asyncio


class ChangeBell:
    """A counter that can be waited for. Whoever was away while it rang finds it ahead."""

    def __init__(self) -> None:
        self.rung = 0
        self._event = asyncio.Event()

    def ring(self) -> None:
        self.rung += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait_past(self, rung: int, seconds: float) -> None:
        """Return once the counter is past `rung`, or after `seconds`."""
        if self.rung != rung:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
