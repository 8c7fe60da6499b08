"""Keeps one replica of a pool alive: start it, outlive it, see that it is gone, start the next."""

import asyncio
import logging
import time
from collections.abc import Callable

from segue.cluster.change_bell import ChangeBell
from segue.cluster.errors import SegueError
from segue.cluster.fleet import DeathCause, Ending, WorkerState
from segue.cluster.identity import WorkerIdentity, new_incarnation
from segue.cluster.launcher import Launcher, LaunchState, Probe, WorkerSpec
from segue.cluster.registry import Registry

logger = logging.getLogger(__name__)

PROBE_INTERVAL_S = 0.25  # of a worker that is not ready
PROBE_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 15.0
MAX_BACKOFF_S = 30.0
DRAIN_GRACE_S = 15.0  # a worker that has drained closes what it has open
SETTLED_AFTER_S = 30.0  # one that was ready this long does not count as one of a series of deaths


def backoff_seconds(failures: int) -> float:
    """Pause before the next start after `failures` short lives in a row: 0, 1, 2, 4 .. 30 s."""
    return min(MAX_BACKOFF_S, 2.0 ** (min(failures, 10) - 1)) if failures else 0.0


class Replica:
    """One slot of a pool. Each life in it has an incarnation of its own."""

    def __init__(
        self,
        worker_id: str,
        specify: Callable[[WorkerIdentity], WorkerSpec],
        registry: Registry,
        launcher: Launcher,
        bell: ChangeBell,
        *,
        start_timeout_s: float,
        drain_timeout_s: float,
    ) -> None:
        self.worker_id = worker_id
        self.reason = ""  # why nothing runs in this slot now
        self._specify = specify
        self._registry = registry
        self._launcher = launcher
        self._bell = bell
        self._start_timeout_s = start_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._failures = 0
        self._ready_since: float | None = None

    async def run(self, survivor: WorkerIdentity | None = None) -> None:
        """Never returns. `survivor` is a life that an earlier controller started."""
        identity = survivor
        while True:
            ending: Ending | None = None
            if identity is None:
                identity, ending = await self._launch()
            self._ready_since = None
            ending = ending or await self._outlive(identity)
            ready_for = time.monotonic() - (self._ready_since or time.monotonic())
            settled = ready_for >= SETTLED_AFTER_S or ending.cause is DeathCause.DRAINED
            self._failures = 0 if settled else self._failures + 1
            planned = ending.cause is DeathCause.DRAINED
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "%s is dead (%s): %s", identity, ending.cause, ending.reason)
            await self._end(identity, ending)
            await self._pause(ending)
            identity = None

    async def _launch(self) -> tuple[WorkerIdentity, Ending | None]:
        """Start the next life; also return why that was impossible, or None."""
        identity = WorkerIdentity(self.worker_id, new_incarnation())
        spec = self._specify(identity)
        self._registry.expect(identity, spec.pool, spec.role, time.monotonic())
        self.reason = ""
        self._bell.ring()
        try:
            await self._launcher.start(spec)
        except SegueError as error:
            return identity, Ending(DeathCause.NOT_STARTED, f"could not be started: {error}")
        return identity, None

    async def _outlive(self, identity: WorkerIdentity) -> Ending:
        """Return, with the cause, once that life is over or must be ended."""
        start_deadline = time.monotonic() + self._start_timeout_s
        drain_deadline: float | None = None
        while True:
            rung = self._bell.rung
            view = self._registry.newest(self.worker_id)
            if view is None or view.identity != identity:
                return Ending(DeathCause.REPLACED, "another life took its place")
            if view.state is WorkerState.DEAD:
                ending = self._registry.last_end(self.worker_id)
                return ending or Ending(DeathCause.EXITED, view.reason)
            if view.state is WorkerState.READY:
                self._ready_since = self._ready_since or time.monotonic()
            else:
                probe = await self._probe(identity)
                if view.state is WorkerState.DRAINING:
                    now = time.monotonic()
                    drain_deadline = drain_deadline or now + self._drain_timeout_s + DRAIN_GRACE_S
                    if probe.state is LaunchState.GONE:
                        return Ending(DeathCause.DRAINED, f"drained ({view.reason})")
                    if now > drain_deadline:
                        return Ending(DeathCause.OVERSTAYED, f"did not leave ({view.reason})")
                if probe.state is LaunchState.GONE:
                    cause = DeathCause.MISCONFIGURED if probe.is_final else DeathCause.EXITED
                    return Ending(cause, probe.reason or "its process is gone")
                if view.state is WorkerState.STARTING:
                    self._registry.explain(identity, probe.reason)
                    if probe.state is LaunchState.PENDING:  # waiting for a node is no failure
                        start_deadline = time.monotonic() + self._start_timeout_s
                    elif time.monotonic() > start_deadline:
                        late = f"was not ready within {self._start_timeout_s:g} s of its start"
                        return Ending(DeathCause.NOT_STARTED, late)
            await self._bell.wait_past(rung, PROBE_INTERVAL_S)

    async def _probe(self, identity: WorkerIdentity) -> Probe:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await self._launcher.probe(identity)
        except (TimeoutError, SegueError) as error:
            return Probe(LaunchState.UNKNOWN, f"launcher does not answer: {error}")

    async def _end(self, identity: WorkerIdentity, ending: Ending) -> None:
        """Routing stops at once; the next life begins when this one is proven gone."""
        self._registry.bury(identity, ending.reason, time.monotonic(), ending.cause)
        self._bell.ring()
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                gone = await self._launcher.kill(identity)
        except (TimeoutError, SegueError) as error:
            logger.warning("ending %s: %s", identity, error)
            gone = False
        if not gone:
            # Safe all the same: nobody listens to a buried incarnation.
            logger.warning("%s could not be proven gone within %.0f s", identity, KILL_TIMEOUT_S)

    async def _pause(self, ending: Ending) -> None:
        """What is misconfigured may be so on one node only, or be mended: it is not given up."""
        seconds = backoff_seconds(self._failures)
        if ending.cause is DeathCause.MISCONFIGURED:
            seconds = MAX_BACKOFF_S
        self.reason = f"{ending.reason}; starts again in {seconds:.0f} s"
        self._bell.ring()
        await asyncio.sleep(seconds)
