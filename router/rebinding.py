"""Moves requests that wait for room at one decode worker to another one that has some.

Not a byte has moved for them yet, so nothing is lost: the prefill worker asks the other one too,
and keeps the request's place in the first one's queue until that has granted. A request asks each
worker once at most, so none goes to and fro.
"""

import asyncio
import logging
from collections.abc import Iterable

from segue.cluster.errors import SegueError
from segue.cluster.fleet import FleetView, WorkerView
from segue.cluster.handoff import RebindOrder, RebindOutcome
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.cluster.rpc.worker_client import WorkerClient
from segue.router.flight import Flight
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.router.policy import is_apart
from segue.router.progress import Progress

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # for the prefill worker's answer, beyond the wait itself
MAX_AT_ONCE = 16


class Rooms:
    """What decode workers had room for when they last said so, less what was sent there since."""

    def __init__(self, workers: Iterable[WorkerView]) -> None:
        self._workers = [worker for worker in workers if _takes_more(worker)]
        self._tokens: dict[WorkerIdentity, float] = {}
        self._slots: dict[WorkerIdentity, float] = {}
        for worker in self._workers:
            assert worker.status is not None
            gauges = worker.status.gauges
            self._tokens[worker.identity] = gauges.get("kv_tokens_unpromised", 0.0)
            self._slots[worker.identity] = gauges.get("free_slots", 0.0)

    def take(self, progress: Progress, flight: Flight) -> WorkerView | None:
        """Where the request fits, with most to spare; that room is taken."""
        fitting = [
            (self._tokens[worker.identity] - need, worker.identity.worker_id, worker, need)
            for worker in self._workers
            if worker.identity != flight.writer
            and worker.identity not in flight.asked
            and not is_apart(flight.binding.prefill, worker)
            and (need := _tokens_needed(progress, worker)) <= self._tokens[worker.identity]
            and self._slots[worker.identity] >= 1
        ]
        if not fitting:
            return None
        *_, best, need = max(fitting, key=lambda fit: fit[:2])
        self._tokens[best.identity] -= need
        self._slots[best.identity] -= 1
        return best


def _takes_more(worker: WorkerView) -> bool:
    """Whoever has a queue has no room for those who would come in front of it."""
    if worker.role == "prefill" or worker.status is None or worker.peer is None:
        return False
    return not worker.status.gauges.get("waiting_requests", 0.0)


def _tokens_needed(progress: Progress, worker: WorkerView) -> float:
    assert worker.status is not None
    limit = progress.request.stop.max_tokens
    answer = min(limit, worker.status.gauges.get("expected_output_tokens", limit))
    prompt = progress.request.num_prompt_tokens
    return max(prompt + answer, progress.log.next_position + 1)


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
            target = rooms.take(progress, flight) if client is not None else None
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
