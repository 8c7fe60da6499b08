"""Fetches the recorded steps of a worker that a person names."""

from collections.abc import Callable

from segue.cluster.errors import InvalidRequest, Unavailable
from segue.cluster.fleet import FleetView, WorkerState
from segue.cluster.step_trace import StepRecord
from segue.router.links import WorkerLinks

TRACE_SECONDS = 5.0


class Tracing:
    def __init__(self, view: Callable[[], FleetView], links: WorkerLinks) -> None:
        self._view = view
        self._links = links

    async def steps(self, worker_id: str, num_steps: int) -> list[StepRecord]:
        """Raises InvalidRequest that lists the workers if there is none of that name."""
        living = [w for w in self._view().workers if w.state is not WorkerState.DEAD]
        found = [w for w in living if w.identity.worker_id == worker_id]
        if not found:
            names = ", ".join(sorted(w.identity.worker_id for w in living)) or "none"
            raise InvalidRequest(
                f"no worker is called '{worker_id}'; there are: {names}", param="worker"
            )
        client = self._links.client(found[0].identity)
        if client is None:
            raise Unavailable(f"{worker_id} is not connected")
        return await client.trace(num_steps, deadline_s=TRACE_SECONDS)
