"""Finds attempts whose sequence has left the engine without anybody here hearing of it.

Nothing should ever need this: it bounds by seconds what a defect would otherwise cost, which is to
wait for a word that does not come until the request's deadline.
"""

import asyncio
import logging
from collections.abc import Callable

from segue.workers.attempts import Attempts
from segue.workers.engine import Engine
from segue.workers.sequence import Phase, Sequence

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
ANSWER_SECONDS = 60.0  # of the engine, which may be within a long step; the watchdog sees to more


class Audit:
    """Lives on the event loop, and runs while there are attempts."""

    def __init__(
        self,
        attempts: Attempts,
        engine: Engine,
        on_lost: Callable[[Sequence], None],
        look_s: float = LOOK_SECONDS,
    ) -> None:
        self._attempts = attempts
        self._engine = engine
        self._on_lost = on_lost
        self._look_s = look_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call when an attempt arrives; harmless if it runs already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="audit")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(self._look_s)
        while len(self._attempts):
            try:
                await self._look()
            except TimeoutError:
                logger.warning("the engine did not answer within %g s", ANSWER_SECONDS)
            except Exception:
                logger.exception("looking for lost attempts failed")
            await asyncio.sleep(self._look_s)

    async def _look(self) -> None:
        """All that the engine has said before it answers is heard before the answer is."""
        suspects = [
            running
            for running in self._attempts.all()
            if running.awaits_engine and running.sequence.phase is Phase.ENDED
        ]
        if not suspects:
            return
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.wrap_future(self._engine.call(lambda: None))
        for running in suspects:
            if running.awaits_engine and self._attempts.of(running.sequence) is running:
                self._on_lost(running.sequence)
