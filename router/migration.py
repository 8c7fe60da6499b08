"""Moves running requests from worker to worker, on order; counts how that ended, with figures."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import (
    DeadlineExceeded,
    InvalidRequest,
    SegueError,
    StaleReference,
    Unavailable,
)
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.handoff import MigrationOrder, MigrationReport
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc.worker_client import WorkerClient
from segue.router.fleet import find_worker
from segue.router.flight import Flight, FlightMove
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.router.progress import Progress

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # for the source's account, beyond the longest move


@dataclass(frozen=True, slots=True)
class Migration:
    """A move that was made. `report` None: the target goes on, but the source did not say what
    it sent. `pause_s`: between the last token of one and the first of the other."""

    request_id: str
    source: WorkerIdentity
    target: WorkerIdentity
    report: MigrationReport | None
    pause_s: float | None


class Migrations:
    def __init__(
        self,
        journeys: Journeys,
        links: WorkerLinks,
        view: Callable[[], FleetView],
        longest_move_s: float = TransferConfig().longest_move_s,
    ) -> None:
        """`longest_move_s`: after that a source gives up, and says so."""
        self._journeys = journeys
        self._links = links
        self._view = view
        self._patience_s = longest_move_s + ANSWER_SECONDS
        self._following: set[asyncio.Task[Migration]] = set()

    async def migrate(self, request_id: str, worker_id: str) -> Migration:
        """As a person orders it. Raises InvalidRequest that says what is wrong with the names."""
        progress = self._find(request_id)
        target = find_worker(self._view(), worker_id)
        if target.role == "prefill":
            raise InvalidRequest(
                f"{worker_id} is a prefill worker: it writes no answers", param="worker"
            )
        if target.state is not WorkerState.READY:
            told = f": {target.reason}" if target.reason else ""
            raise InvalidRequest(f"{worker_id} is {target.state}{told}", param="worker")
        return await asyncio.shield(self.begin(progress, target))

    def _find(self, request_id: str) -> Progress:
        running = self._journeys.running
        if request_id not in running:
            raise InvalidRequest(
                f"no request '{request_id}' is running at this gateway, which has {len(running)}",
                param="request",
            )
        return running[request_id]

    def begin(self, progress: Progress, target: WorkerView) -> "asyncio.Task[Migration]":
        """Raises InvalidRequest or Unavailable if it cannot be tried. The task raises a SegueError
        if it failed: then the request goes on where it was."""
        name, flight = progress.request.request_id, progress.flight
        if flight is None or not flight.generates:
            raise InvalidRequest(f"request '{name}' is not being written yet", param="request")
        source = flight.writer
        if source == target.identity:
            raise InvalidRequest(
                f"request '{name}' is on {source.worker_id} already", param="worker"
            )
        if flight.move is not None:
            raise InvalidRequest(f"request '{name}' is being moved already", param="request")
        client = self._links.client(source)
        if client is None or target.peer is None or not self._links.usable(target.identity):
            raise Unavailable(f"{source.worker_id} or {target.identity.worker_id} is cut off")
        number = progress.next_attempt()
        order = MigrationOrder(
            flight.attempt, target.peer, number.attempt, progress.log.next_position
        )
        move = flight.begin_move(target, number)
        # Followed to its end even if nobody waits for that: else nobody would know who has it.
        following = asyncio.create_task(self._follow(flight, move, client, order))
        self._following.add(following)
        following.add_done_callback(self._followed)
        return following

    def _followed(self, task: asyncio.Task[Migration]) -> None:
        self._following.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits has it

    async def _follow(
        self, flight: Flight, move: FlightMove, client: WorkerClient, order: MigrationOrder
    ) -> Migration:
        source, name = flight.writer, order.attempt.request_id
        report: MigrationReport | None = None
        try:
            report = await client.migrate(order, deadline_s=self._patience_s)
        except (Unavailable, DeadlineExceeded, StaleReference) as error:
            flight.lose_track(move, f"{source} did not say what became of a move: {error.message}")
            self._raise_unless_settled(move, "source lost", error)
        except SegueError as error:
            flight.give_up_move(move)
            self._raise_unless_settled(move, "failed", error)
        flight.settle_move(move)
        pause = await move.landed
        missed = "target lost" if move.failure is not None else "ended"
        self._journeys.counters.migrations[missed if pause is None else "moved"] += 1
        logger.info("%s moved from %s to %s", name, source, move.target.identity)
        return Migration(name, source, move.target.identity, report, pause)

    def _raise_unless_settled(self, move: FlightMove, outcome: str, error: SegueError) -> None:
        """The target's own tokens have said more than the source."""
        if move.settled:
            return
        self._journeys.counters.migrations[outcome] += 1
        logger.warning("%s was not moved to %s: %s", move.attempt, move.target.identity, error)
        raise error
