"""Moves requests off workers that drain, a few at once, as long as there is somewhere to go.

It looks again and again at what is under way, and waits for no move to end: one that takes long
holds up no other. What cannot be moved ends where it is, or goes on elsewhere when the worker
leaves.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from segue.cluster.errors import SegueError
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.router.journey import Journeys
from segue.router.migration import Migration, Migrations
from segue.router.policy import choose_writer
from segue.router.progress import Progress
from segue.router.rooms import Rooms

logger = logging.getLogger(__name__)

AT_ONCE = 4  # moves from one worker
LOOK_SECONDS = 0.1
RETRY_SECONDS = 0.5


@dataclass(slots=True)
class _Setbacks:
    """Of one request that could not be moved so far."""

    retry_at: float
    number: int = 0
    tried: set[WorkerIdentity] = field(default_factory=set)  # one after the other, then all again


class Evacuation:
    """Follows the fleet view: whoever made a worker drain, this gateway's requests leave it."""

    def __init__(
        self,
        watcher: FleetWatcher,
        journeys: Journeys,
        migrations: Migrations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watcher = watcher
        self._journeys = journeys
        self._migrations = migrations
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._setbacks: dict[str, _Setbacks] = {}
        self._rooms: tuple[FleetView, Rooms] | None = None  # and the view that told of them
        watcher.on_change(self.observe)

    def observe(self, view: FleetView) -> None:
        if (self._task is None or self._task.done()) and _draining(view):
            self._task = asyncio.create_task(self._run(), name="evacuation")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """As long as a worker drains."""
        while draining := _draining(self._watcher.view):
            try:
                self._look(draining)
            except Exception:
                logger.exception("emptying workers that drain failed; it is tried again")
            await asyncio.sleep(LOOK_SECONDS)
        self._setbacks.clear()
        self._rooms = None

    def _look(self, draining: dict[WorkerIdentity, WorkerView]) -> None:
        """One pass over all requests, however many workers drain."""
        under_way: Counter[WorkerIdentity] = Counter()
        movable: defaultdict[WorkerIdentity, list[Progress]] = defaultdict(list)
        now = self._clock()
        for name, progress in self._journeys.running.items():
            flight = progress.flight
            if flight is None or flight.writer not in draining:
                continue
            setbacks = self._setbacks.get(name)
            if flight.move is not None:
                under_way[flight.writer] += 1
            elif flight.generates and (setbacks is None or now >= setbacks.retry_at):
                movable[flight.writer].append(progress)
        for name in [name for name in self._setbacks if name not in self._journeys.running]:
            del self._setbacks[name]
        if not movable:
            return
        ready = self._journeys.ready(self._watcher.view)
        for source, those in movable.items():
            those.sort(key=self._num_setbacks)  # those that failed least go first
            for progress in those[: max(0, AT_ONCE - under_way[source])]:
                self._begin(progress, draining[source], ready)

    def _num_setbacks(self, progress: Progress) -> int:
        setbacks = self._setbacks.get(progress.request.request_id)
        return 0 if setbacks is None else setbacks.number

    def _begin(self, progress: Progress, source: WorkerView, ready: list[WorkerView]) -> None:
        name = progress.request.request_id
        setbacks = self._setbacks.get(name)
        tried = setbacks.tried if setbacks else set[WorkerIdentity]()
        target = self._target(progress, source, ready, tried)
        if target is None:
            tried.clear()
            return
        try:
            moving = self._migrations.begin(progress, target)
        except SegueError as error:
            self._set_back(name, target, error)
        else:
            moving.add_done_callback(lambda done: self._ended(name, target, done))

    def _target(
        self,
        progress: Progress,
        source: WorkerView,
        ready: list[WorkerView],
        tried: Collection[WorkerIdentity],
    ) -> WorkerView | None:
        """Who says that it has room, with most to spare; else whoever writes the fewest answers:
        there may be room when it is asked."""
        view = self._watcher.view
        if self._rooms is None or self._rooms[0] is not view:
            self._rooms = view, Rooms(ready)
        roomy = self._rooms[1].take(progress, source, {source.identity, *tried})
        return roomy or choose_writer(ready, self._journeys.load, source, tried)

    def _ended(self, name: str, target: WorkerView, moving: "asyncio.Task[Migration]") -> None:
        if not moving.cancelled() and (error := moving.exception()) is not None:
            self._set_back(name, target, error)

    def _set_back(self, name: str, target: WorkerView, error: BaseException) -> None:
        logger.info("%s did not go to %s: %s", name, target.identity, error)
        setbacks = self._setbacks.setdefault(name, _Setbacks(0.0))
        setbacks.number += 1
        setbacks.tried.add(target.identity)
        setbacks.retry_at = self._clock() + RETRY_SECONDS


def _draining(view: FleetView) -> dict[WorkerIdentity, WorkerView]:
    return {w.identity: w for w in view.workers if w.state is WorkerState.DRAINING}
