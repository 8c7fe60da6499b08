"""The HTTP server around the gateway's application, set up the same in production and tests."""

from contextlib import AbstractContextManager, nullcontext

import uvicorn
from fastapi import FastAPI

from segue.router.http_protocol import BoundedHttpProtocol

KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections
DRAIN_SECONDS = 30  # for the answers under way when the server is told to stop


class GatewayServer(uvicorn.Server):
    """Serves `app`; leaves signals to whoever runs it."""

    def __init__(self, app: FastAPI) -> None:
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
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
