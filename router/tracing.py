"""Fetches the recorded steps of a worker that a person names."""

from collections.abc import Callable

from segue.cluster.errors import Unavailable
from segue.cluster.fleet import FleetView
from segue.cluster.step_trace import StepRecord
from segue.router.fleet import find_worker
from segue.router.links import WorkerLinks

TRACE_SECONDS = 5.0


class Tracing:
    def __init__(self, view: Callable[[], FleetView], links: WorkerLinks) -> None:
        self._view = view
        self._links = links

    async def steps(self, worker_id: str, num_steps: int) -> list[StepRecord]:
        """Raises InvalidRequest that lists the workers if there is none of that name."""
        worker = find_worker(self._view(), worker_id)
        client = self._links.client(worker.identity)
        if client is None:
            raise Unavailable(f"{worker_id} is not connected")
        return await client.trace(num_steps, deadline_s=TRACE_SECONDS)
