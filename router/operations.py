"""What a person may order of a running deployment: move a request, drain a worker."""

from collections.abc import Callable, Collection

from segue.cluster.errors import AttemptFailed, InvalidRequest, Unavailable
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.router.fleet import find_worker
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.router.migration import Migration, Migrations

DRAIN_SECONDS = 5.0


class Operations:
    def __init__(
        self,
        journeys: Journeys,
        migrations: Migrations,
        links: WorkerLinks,
        view: Callable[[], FleetView],
    ) -> None:
        self._journeys = journeys
        self._migrations = migrations
        self._links = links
        self._view = view

    @property
    def running(self) -> Collection[str]:
        """The ids of the requests that could be meant."""
        return self._journeys.running.keys()

    async def migrate(self, request_id: str, worker_id: str) -> Migration:
        """Raises InvalidRequest for what cannot be, Unavailable for what did not work out."""
        try:
            return await self._migrations.migrate(request_id, worker_id)
        except AttemptFailed as error:
            raise Unavailable(f"the request goes on where it was: {error.message}") from error

    async def drain(self, worker_id: str) -> WorkerView:
        """Returns once the worker takes nothing new. Asking again changes nothing."""
        worker = find_worker(self._view(), worker_id)
        if worker.state is WorkerState.STARTING:
            raise InvalidRequest(f"{worker_id} is still starting", param="worker")
        client = self._links.client(worker.identity)
        if client is None:
            raise Unavailable(f"{worker_id} is not connected")
        await client.drain("drained on order", deadline_s=DRAIN_SECONDS)
        return worker
