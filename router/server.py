"""The HTTP server around the gateway's application, set up the same in production and tests."""

import asyncio
import logging
import math
from contextlib import AbstractContextManager, nullcontext

import uvicorn
from fastapi import FastAPI

from segue.router.http_protocol import BoundedHttpProtocol

KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections
DRAIN_SECONDS = 30.0


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
                timeout_graceful_shutdown=math.ceil(drain_timeout_s),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_CUT_OFF)  # adding it again changes nothing

    def stop(self) -> None:
        """Take nothing new, finish what is under way."""
        self.should_exit = True

    def abandon(self) -> None:
        """Cut off what is still under way; the server library's account of each is no news."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.should_exit = self.force_exit = True

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
