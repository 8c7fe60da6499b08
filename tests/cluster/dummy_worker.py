"""A worker that computes nothing: it registers, beats and stops. Started by real launchers."""

import asyncio
import os
import threading
import time
from dataclasses import replace

from segue.cluster.errors import ConfigurationError
from segue.cluster.fleet import Registration
from segue.cluster.identity import Peer
from segue.cluster.launcher import WorkerSettings, open_locator
from segue.cluster.rpc.heartbeat import HeartbeatClient
from segue.cluster.rpc.security import load_security
from segue.cluster.worker_status import WorkerCondition, WorkerStatus

SICKNESSES = {
    "wedged": (WorkerCondition.STALLED, 1000.0),
    "failed": (WorkerCondition.FAILED, 0.0),
}


class DummyWorker:
    """`model_folder` "fails" makes its start fail."""

    def __init__(self, settings_json: str) -> None:
        self.settings = WorkerSettings.model_validate_json(settings_json)
        self._drain_reason = ""
        self._client: HeartbeatClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        if self.settings.model_folder == "fails":
            raise RuntimeError("the weights are not there")
        self._thread.start()
        settings = self.settings
        registration = Registration(
            Peer(settings.identity, f"{settings.host}:1"),
            settings.pool,
            settings.role,
            {"block_size": str(settings.engine.block_size)},
            os.getpid(),
        )
        client = self._client = HeartbeatClient(
            open_locator(settings.locator),
            settings.cluster_token,
            registration,
            self.status,
            lambda reason: os._exit(3),
            security=load_security(settings.control),
        )
        self._task = asyncio.run_coroutine_threadsafe(client.run(), self._loop)
        waiting = asyncio.run_coroutine_threadsafe(client.wait_registered(20), self._loop)
        waiting.result(20)

    def status(self) -> WorkerStatus:
        condition = WorkerCondition.DRAINING if self._drain_reason else WorkerCondition.READY
        return WorkerStatus(
            self.settings.identity,
            self.settings.role,
            condition,
            gauges=self._gauges(),
            cause=self._drain_reason,
        )

    def _gauges(self) -> dict[str, float]:
        """It says that it has learned something, and what it was told at its start."""
        heard = self.settings.usual_answer
        told = {} if heard is None else {"heard_tokens": float(heard.tokens)}
        return {"expected_output_tokens": 90.0, "expected_output_share": 0.5, **told}

    def drain(self, reason: str) -> None:
        """Say so at once, and leave a moment later, as one does that had something left."""
        self._drain_reason = reason
        if self._client is not None:
            self._loop.call_soon_threadsafe(self._client.beat_now)
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.3, os._exit, 0)

    def stop(self) -> None:
        self._task.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class SickWorker(DummyWorker):
    """`model_folder` is "sickness file": who can remove the file has it, so that one life does."""

    def __init__(self, settings_json: str) -> None:
        super().__init__(settings_json)
        self._sickness, _, self._file = self.settings.model_folder.partition(" ")

    def start(self) -> None:
        if self._sickness == "never_ready" and self._is_sick():
            threading.Event().wait()
        super().start()

    def status(self) -> WorkerStatus:
        status = super().status()
        if self._sickness == "never_ready" or not self._is_sick():
            return status
        if self._sickness == "loop_hangs":
            time.sleep(1000)
        condition, stuck = SICKNESSES[self._sickness]
        return replace(status, condition=condition, cause="so it was told", stuck_seconds=stuck)

    def _is_sick(self) -> bool:
        try:
            os.remove(self._file)
        except FileNotFoundError:
            return False
        return True


class BrokenWorker:
    """Its constructor fails."""

    def __init__(self, settings_json: str) -> None:
        raise RuntimeError("no such device: cuda:9")


class MisconfiguredWorker:
    """No start of it can succeed, and it knows."""

    def __init__(self, settings_json: str) -> None:
        pass

    def start(self) -> None:
        raise ConfigurationError("there is no libfast here; to install it: pip install fast")


class ClingingWorker(DummyWorker):
    """It drains, and never ends."""

    def drain(self, reason: str) -> None:
        self._drain_reason = reason
