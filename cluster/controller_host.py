"""The process around the controller: an event loop in a thread, its gRPC server, its end."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from segue.cluster.controller import Controller
from segue.cluster.launcher import ControllerSettings, Launcher
from segue.cluster.rpc.controller_service import serve_controller
from segue.cluster.rpc.security import load_security
from segue.cluster.worker_host import LOG_FORMAT

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
RESTART_PAUSE_S = 1.0  # so that a controller that can not live is not restarted in a hot loop


class ControllerHost:
    """If the controller's loop fails the whole process ends, and is started anew from outside."""

    def __init__(
        self,
        settings: ControllerSettings,
        launch: Callable[[], Launcher],
        *,
        host: str,
        restarted: bool,
    ) -> None:
        """`host`: where this process listens; the workers' is in the settings."""
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        self._settings = settings
        self._launch = launch
        self._host = host
        self._restarted = restarted
        self._address: Future[str] = Future()
        self._stop_asked: Future[float] = Future()
        self._stopped = threading.Event()
        threading.Thread(target=self._live, name="controller", daemon=True).start()

    def address(self) -> str:
        return self._address.result(START_TIMEOUT_S)

    def stop(self, grace_s: float) -> bool:
        """End all workers, then the controller. True: done; False: not within the grace."""
        if not self._stop_asked.done():
            self._stop_asked.set_result(grace_s)
        return self._stopped.wait(grace_s + START_TIMEOUT_S)

    def _live(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            logger.exception("the controller failed")
            time.sleep(RESTART_PAUSE_S)
            os._exit(1)
        self._stopped.set()

    async def _serve(self) -> None:
        settings = self._settings
        controller = Controller(settings, self._launch())
        server = await serve_controller(
            controller,
            token=settings.cluster_token,
            host=self._host,
            heartbeat_s=settings.config.control.heartbeat_s,
            security=load_security(settings.config.control),
        )
        self._address.set_result(server.address)
        life = asyncio.create_task(controller.run(restarted=self._restarted))
        asked = asyncio.wrap_future(self._stop_asked)
        ends: list[asyncio.Future[Any]] = [life, asked]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            life.result()  # raises what ended it
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await controller.stop(asked.result())
        await server.stop()
