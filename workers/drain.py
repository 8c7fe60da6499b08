"""Leaving in order: nothing new is taken, what is here ends or is moved, then the worker goes."""

import asyncio
import logging

from segue.workers.attempts import Attempts
from segue.workers.frame_outbox import FrameOutbox
from segue.workers.lease_desk import LeaseDesk

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05


class Drain:
    """Lives on the event loop. Once begun it is not taken back."""

    def __init__(self, attempts: Attempts, leases: LeaseDesk, outbox: FrameOutbox) -> None:
        self._attempts = attempts
        self._leases = leases
        self._outbox = outbox
        self.begun = asyncio.Event()
        self.reason = ""

    def begin(self, reason: str) -> None:
        if not self.begun.is_set():
            self.reason = reason
            logger.warning("draining (%s): %s", reason, self.waits_for)
            self._attempts.draining = True
            self.begun.set()

    @property
    def waits_for(self) -> str:
        return f"{len(self._attempts)} requests, {len(self._leases)} leases"

    @property
    def is_over(self) -> bool:
        """Nothing is here any more, and all gateways that listen have heard of it."""
        return not (len(self._attempts) or len(self._leases) or self._outbox.has_news)

    async def finish(self, timeout_s: float) -> bool:
        """Wait until it is over. False: the time was up first, and what is left will be ended."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_over:
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            logger.warning("leaving after %g s of draining with %s", timeout_s, self.waits_for)
            return False
        return True
