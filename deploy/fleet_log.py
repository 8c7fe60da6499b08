"""Tells the operator, one line a change, what happens in the fleet."""

import logging
from collections.abc import Callable

from segue.cluster.fleet import DeathCause, FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.router.generation import Readiness

logger = logging.getLogger(__name__)

_LOUD = {WorkerState.SUSPECT, WorkerState.DEAD}


class FleetLog:
    """`observe` takes every view; only differences are logged."""

    def __init__(self, readiness: Callable[[], Readiness], serving: str) -> None:
        self._readiness = readiness
        self._serving = serving
        self._told: dict[WorkerIdentity, tuple[WorkerState, str]] = {}
        self._num_drained: dict[str, int] = {}  # lives of a worker that left on order
        self._refused: frozenset[tuple[WorkerIdentity, WorkerIdentity]] = frozenset()
        self._ready: bool | None = None

    def observe(self, view: FleetView) -> None:
        for worker in view.workers:
            now = (worker.state, worker.reason)
            if self._told.get(worker.identity) == now:
                continue
            self._told[worker.identity] = now
            what = f"{worker.identity.worker_id} {worker.state.value}"
            if worker.state is WorkerState.READY:
                what += f" (pid {worker.pid})"
            elif worker.state is WorkerState.STARTING and worker.restarts:
                what += f" (restart {worker.restarts}; before: {worker.last_end})"
            planned = self._left_on_order(worker)
            level = logging.WARNING if worker.state in _LOUD and not planned else logging.INFO
            logger.log(level, "%s", what + (f": {worker.reason}" if worker.reason else ""))
        current = {worker.identity for worker in view.workers}
        names = {identity.worker_id for identity in current}
        self._num_drained = {k: n for k, n in self._num_drained.items() if k in names}
        self._told = {who: told for who, told in self._told.items() if who in current}
        self._observe_pairs(view)
        self._observe_readiness()

    def _left_on_order(self, worker: WorkerView) -> bool:
        """Whether this end is one more that was wanted."""
        worker_id, count = worker.identity.worker_id, worker.deaths.get(DeathCause.DRAINED, 0)
        before = self._num_drained.get(worker_id, 0)
        self._num_drained[worker_id] = count
        return worker.state is WorkerState.DEAD and count > before

    def _observe_pairs(self, view: FleetView) -> None:
        """A pair that exchanges no KV is told once, and again when it does."""
        refusals = {
            (pair.source, worker.identity): pair.refusal
            for worker in view.workers
            if worker.status is not None and worker.state is not WorkerState.DEAD
            for pair in worker.status.pairs
            if pair.is_refused
        }
        for pair in refusals.keys() - self._refused:
            logger.warning("preflight failed: %s", refusals[pair])
        for source, reader in self._refused - refusals.keys():
            if view.find(source) and view.find(reader):
                logger.info("%s reads KV from %s again", reader, source)
        self._refused = frozenset(refusals)

    def _observe_readiness(self) -> None:
        state = self._readiness()
        if state.ready and not self._ready:
            logger.info("ready: %s", self._serving)
        elif self._ready and not state.ready:
            logger.warning("not ready: %s", state.reason)
        self._ready = state.ready
