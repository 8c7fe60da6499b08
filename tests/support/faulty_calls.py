"""The calls of a worker, held, served twice or left without an answer on demand."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from fault_plan import FaultPlan

from segue.cluster.errors import SegueError, Unavailable
from segue.cluster.worker_api import WorkerApi

HOLD_POLL_SECONDS = 0.01


class FaultyCalls:
    """Stands before a worker's calls: holds them, serves them twice, loses their answers."""

    def __init__(self, worker: WorkerApi, plan: Callable[[], FaultPlan]) -> None:
        self.worker = worker
        self.held: list[str] = []
        self.on_held: Callable[[], None] = lambda: None
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.worker, name)
        if name in ("identity", "fences", "frames", "status"):
            return method

        async def call(*arguments: Any) -> Any:
            return await self._serve(name, lambda: method(*arguments))

        return call

    async def _serve(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if name in self._plan().held:
            await self._hold(name)
        answer = await call()
        if name in self._plan().twice:
            with suppress(SegueError):  # its answer has nobody to go to
                await call()
        if name in self._plan().unanswered:
            raise Unavailable(f"the answer of {name} was lost")
        return answer

    async def _hold(self, name: str) -> None:
        self.held.append(name)
        self.on_held()
        try:
            while name in self._plan().held:
                await asyncio.sleep(HOLD_POLL_SECONDS)
        finally:
            self.held.remove(name)
            self.on_held()
