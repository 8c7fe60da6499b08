"""The HTTP server around the gateway's application, set up the same in production and tests."""

import asyncio
import logging
import math
from contextlib import AbstractContextManager, nullcontext

import uvicorn
from fastapi import FastAPI

from segue.router.draining import Draining
from segue.router.http_protocol import BoundedHttpProtocol

KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections
DRAIN_SECONDS = 30.0
LAST_WORDS_SECONDS = 2.0  # for what is broken off to be told so


class _CutOff(logging.Filter):
    """What is cut off because the server ends is no fault of the application's."""

    def filter(self, record: logging.LogRecord) -> bool:
        cause = record.exc_info[1] if record.exc_info else None
        return not isinstance(cause, asyncio.CancelledError)


_CUT_OFF = _CutOff()


class GatewayServer(uvicorn.Server):
    """Serves `app`; leaves signals to whoever runs it."""

    def __init__(self, app: FastAPI, drain_timeout_s: float = DRAIN_SECONDS) -> None:
        """`drain_timeout_s`: for the answers under way when the server is told to stop."""
        self._draining: Draining = app.state.draining
        self._drain_timeout_s = drain_timeout_s
        self._hurry = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(LAST_WORDS_SECONDS),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_CUT_OFF)  # adding it again changes nothing

    def stop(self) -> None:
        """Take nothing new, finish what is under way; what is not finished in time is told so.

        Until then the port stays open: /ready and new requests are answered 503.
        """
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(), name="drain")

    def abandon(self) -> None:
        """Wait for nothing; the server library's account of what it cuts off is no news."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._hurry.set()
        self.stop()

    async def _end(self) -> None:
        draining = self._draining
        draining.begin()
        idle = asyncio.create_task(draining.idle())
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait(
                {idle, hurry},
                timeout=self._drain_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            draining.break_off()
            await asyncio.wait({idle}, timeout=LAST_WORDS_SECONDS)
        finally:
            idle.cancel()
            hurry.cancel()
            self.should_exit = True
            self.force_exit = self._hurry.is_set()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
