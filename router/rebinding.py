"""Moves requests that wait for room at one decode worker to another one that has some.

Not a byte has moved for them yet, so nothing is lost: the prefill worker asks the other one too,
and keeps the request's place in the first one's queue until that has granted. A request asks each
worker once at most, so none goes to and fro.
"""

import asyncio
import logging

from segue.cluster.errors import SegueError
from segue.cluster.fleet import FleetView, WorkerView
from segue.cluster.handoff import RebindOrder, RebindOutcome
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.cluster.rpc.worker_client import WorkerClient
from segue.router.flight import Flight
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.router.rooms import Rooms

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # for the prefill worker's answer, beyond the wait itself
MAX_AT_ONCE = 16


class Rebinding:
    """Follows the fleet view. `wait_s`: how long the other worker may take to grant; 0: off."""

    def __init__(
        self, watcher: FleetWatcher, journeys: Journeys, links: WorkerLinks, wait_s: float
    ) -> None:
        self._journeys = journeys
        self._links = links
        self._wait_s = wait_s
        self._tasks: set[asyncio.Task[None]] = set()
        if wait_s > 0:
            watcher.on_change(self.observe)

    def observe(self, view: FleetView) -> None:
        crowded = {
            worker.identity
            for worker in view.workers
            if worker.status is not None and worker.status.gauges.get("credits_waiting", 0.0)
        }
        if not crowded:
            return
        rooms = Rooms(self._journeys.ready(view))
        for progress in self._journeys.running.values():  # those that came first first
            flight = progress.flight
            if flight is None or flight.writer not in crowded or not flight.may_be_rebound:
                continue
            if len(self._tasks) >= MAX_AT_ONCE:
                return
            client = self._links.client(flight.binding.prefill.identity)
            reader = flight.binding.prefill
            not_to = {flight.writer, *flight.asked}
            target = rooms.take(progress, reader, not_to) if client is not None else None
            if client is not None and target is not None:
                flight.begin_rebinding(target)
                task = asyncio.create_task(self._ask(client, flight, target))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _ask(self, client: WorkerClient, flight: Flight, target: WorkerView) -> None:
        assert target.peer is not None
        order = RebindOrder(flight.attempt, target.peer, self._wait_s)
        counts = self._journeys.counters.rebindings
        try:
            report = await client.rebind(order, deadline_s=self._wait_s + ANSWER_SECONDS)
        except SegueError as error:  # who has it now, a token will tell
            counts["unknown"] += 1
            logger.warning("%s: no word of a rebinding: %s", order.attempt, error.message)
            return
        counts[report.outcome.value] += 1
        if report.outcome is RebindOutcome.MOVED:
            flight.settle_rebinding(target)
            logger.info("%s goes to %s, which has room", order.attempt, target.identity)
        else:
            flight.give_up_rebinding(target, for_good=report.outcome is RebindOutcome.SETTLED)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
