"""Finds the workers for an attempt, and waits for some: those that come back, or become free.

Of all requests that wait, the one that came first looks again and again; the others stand in line
behind it, so that nothing is done as often as there are requests.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

from segue.cluster.config.gateway import RecoveryConfig
from segue.cluster.errors import Overloaded, Unavailable
from segue.cluster.fleet import FleetView, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.router.busy_workers import BusyWorkers
from segue.router.links import WorkerLinks
from segue.router.policy import Binding, Load, Rung, choose, refusal
from segue.router.progress import Progress
from segue.router.waiting_line import WaitingLine

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05  # links open a moment after the view lists their worker
LINK_SECONDS = 1.0  # a worker that the view lists is given this long to be connected
MAX_LEAVERS = 1024  # remembered; the view tells of them a heartbeat later
# Who is full is waited for, rather than done without by one of the other rungs.
FULL_RUNGS = (Rung.DISAGGREGATED, Rung.COLOCATED)


class Binder:
    """What binds requests here has heard of workers; `load` is what it has given them."""

    def __init__(
        self,
        watcher: FleetWatcher,
        links: WorkerLinks,
        load: Load,
        recovery: RecoveryConfig,
        retry_after_s: int,
        clock: Callable[[], float],
    ) -> None:
        self._watcher = watcher
        self._links = links
        self._load = load
        self._recovery = recovery
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._busy = BusyWorkers()
        # Who refused because it drains, which none takes back: it is not asked again, by anybody.
        self._leavers: OrderedDict[WorkerIdentity, None] = OrderedDict()
        self._line = WaitingLine()

    @property
    def num_waiting(self) -> int:
        """Requests that have found nobody yet."""
        return len(self._line)

    def ready(self, view: FleetView) -> list[WorkerView]:
        """If the controller has lost sight of all workers it is more likely itself cut off: then
        those that we are connected to will do."""
        return self._connected(view.ready_workers() or view.silent_workers())

    def usable(self, view: FleetView) -> list[WorkerView]:
        """What the policy chooses from: also those that only the controller does not hear, which
        are better than a worse rung."""
        return self._connected(view.ready_workers() + view.silent_workers())

    def _connected(self, candidates: Iterable[WorkerView]) -> list[WorkerView]:
        return [
            worker
            for worker in candidates
            if self._links.usable(worker.identity) and worker.identity not in self._leavers
        ]

    # -- what was heard of workers -----------------------------------------------------------

    def leaves(self, worker: WorkerIdentity) -> None:
        self._leavers[worker] = None
        while len(self._leavers) > MAX_LEAVERS:
            self._leavers.popitem(last=False)

    def is_full(self, worker: WorkerIdentity) -> None:
        self._busy.refused(worker, self._clock())

    def took(self, binding: Binding) -> None:
        for worker in binding.workers:
            self._busy.took(worker.identity)

    # -- choosing ----------------------------------------------------------------------------

    async def bind(self, progress: Progress) -> Binding:
        """Raises Overloaded if all have been full for too long, Unavailable if there is nobody."""
        binding = None if self._line else self._choose(progress)
        if binding is None:
            binding = await self._wait(progress)
        if binding is None:
            if self._are_full(progress):
                raise Overloaded(
                    "every worker that could take the request is full",
                    retry_after_seconds=self._retry_after_s,
                )
            usable = self.usable(self._watcher.view)
            raise Unavailable(refusal(usable, self._recovery.ladder))
        for worker in binding.workers:
            self._busy.asked(worker.identity, self._clock())
        return binding

    def _choose(self, progress: Progress) -> Binding | None:
        now = self._clock()
        usable = self.usable(self._watcher.view)
        free = [worker for worker in usable if self._busy.may_be_asked(worker.identity, now)]
        binding = self._best(free, progress)
        if binding is None or len(free) == len(usable):
            return binding
        if binding.rung in FULL_RUNGS and binding.is_heard:
            return binding
        best = self._best(usable, progress)
        if best is None or (best.rung, best.is_heard) != (binding.rung, binding.is_heard):
            return None
        return binding

    def _best(self, workers: list[WorkerView], progress: Progress) -> Binding | None:
        return choose(workers, self._load, progress.failed_on, self._recovery.ladder)

    # -- waiting -----------------------------------------------------------------------------

    async def _wait(self, progress: Progress) -> Binding | None:
        began = self._clock()
        if progress.full_since is None and self._are_full(progress):
            progress.full_since = began
            logger.info("%s waits: the workers for it are full", progress.request.request_id)
        place = self._line.join(progress.arrived)
        try:
            while True:
                is_first = self._line.is_first(place)
                if is_first and (binding := self._choose(progress)) is not None:
                    return binding  # the load of it is counted before anybody else looks
                left = self._end(progress, began) - self._clock()
                if left <= 0:
                    return None
                await place.wait(min(left, LOOK_SECONDS) if is_first else left)
        finally:
            self._line.leave(place)

    def _end(self, progress: Progress, began: float) -> float:
        """Until when it waits, for all that is known now."""
        if self._are_full(progress):
            since = began if progress.full_since is None else progress.full_since
            end = since + self._recovery.full_wait_s
        elif progress.newest_attempt:
            end = began + self._recovery.worker_wait_s
        elif self._watcher.view.ready_workers():
            end = began + LINK_SECONDS
        else:
            end = began
        return min(end, progress.deadline)

    def _are_full(self, progress: Progress) -> bool:
        """Of a request that found nobody: there are workers for it, if only they had room."""
        return self._best(self.usable(self._watcher.view), progress) is not None
