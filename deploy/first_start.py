"""Sees that a deployment will not come up as it is configured, from what becomes of its workers."""

import asyncio

from segue.cluster.fleet import DeathCause, FleetView, WorkerState


class FirstStart:
    """Of each pool, until the first of its workers has served.

    From then on a worker that is misconfigured is one node's trouble: the others serve on.
    """

    def __init__(self) -> None:
        self._came_up: set[str] = set()
        self._failed = asyncio.Event()
        self._reason = ""

    def observe(self, view: FleetView) -> None:
        """Take every view of the fleet."""
        self._came_up |= {worker.pool for worker in view.workers if worker.peer is not None}
        for worker in view.workers:
            hopeless = (
                worker.state is WorkerState.DEAD and DeathCause.MISCONFIGURED in worker.deaths
            )
            if hopeless and worker.pool not in self._came_up and not self._reason:
                self._reason = f"{worker.identity.worker_id} can not start: {worker.last_end}"
                self._failed.set()

    async def failure(self) -> str:
        """Return, with the reason, when it is certain."""
        await self._failed.wait()
        return self._reason
