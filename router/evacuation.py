"""Moves requests off workers that drain, a few at once, as long as there is somewhere to go.

What cannot be moved ends where it is, or goes on elsewhere when the worker leaves.
"""

import asyncio
import logging
from collections import Counter

from segue.cluster.errors import SegueError
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.router.journey import Journeys
from segue.router.migration import Migration, Migrations
from segue.router.policy import choose_writer

logger = logging.getLogger(__name__)

AT_ONCE = 4  # moves from one worker
LOOK_SECONDS = 0.1
RETRY_SECONDS = 0.5


class Evacuation:
    """Follows the fleet view: whoever made a worker drain, this gateway's requests leave it."""

    def __init__(self, watcher: FleetWatcher, journeys: Journeys, migrations: Migrations) -> None:
        self._watcher = watcher
        self._journeys = journeys
        self._migrations = migrations
        self._tasks: dict[WorkerIdentity, asyncio.Task[None]] = {}
        watcher.on_change(self.observe)

    def observe(self, view: FleetView) -> None:
        for worker in view.workers:
            identity = worker.identity
            if worker.state is WorkerState.DRAINING and identity not in self._tasks:
                task = asyncio.create_task(self._evacuate(identity), name=f"evacuate {identity}")
                self._tasks[identity] = task
                task.add_done_callback(lambda _, gone=identity: self._tasks.pop(gone, None))  # type: ignore[misc]

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _evacuate(self, identity: WorkerIdentity) -> None:
        failures: Counter[str] = Counter()  # by request: those that failed least go first
        while (worker := self._watcher.view.find(identity)) is not None:
            if worker.state is not WorkerState.DRAINING:
                return
            moves = self._begin(worker, failures)
            outcomes = await asyncio.gather(*moves.values(), return_exceptions=True)
            failed = [
                name
                for name, outcome in zip(moves, outcomes, strict=True)
                if isinstance(outcome, BaseException)
            ]
            failures.update(failed)
            await asyncio.sleep(RETRY_SECONDS if failed else LOOK_SECONDS)

    def _begin(
        self, worker: WorkerView, failures: Counter[str]
    ) -> dict[str, "asyncio.Task[Migration]"]:
        written = self._migrations.written_by(worker.identity)
        written.sort(key=lambda progress: failures[progress.request.request_id])
        moves: dict[str, asyncio.Task[Migration]] = {}
        for progress in written[:AT_ONCE]:
            name = progress.request.request_id
            ready = self._journeys.ready(self._watcher.view)
            target = choose_writer(ready, self._journeys.load, worker)
            if target is None:
                break
            try:
                moves[name] = self._migrations.begin(progress, target)
            except SegueError as error:
                logger.info("%s stays on %s: %s", name, worker.identity, error)
        return moves
