"""Makes the fleet what the configuration asks for, and tells watchers what it is."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator

from segue.cluster.change_bell import ChangeBell
from segue.cluster.errors import InvalidRequest, SegueError
from segue.cluster.fleet import (
    FleetView,
    PoolView,
    Registration,
    RegistrationVerdict,
    Sources,
    WorkerState,
)
from segue.cluster.identity import WorkerIdentity, new_incarnation
from segue.cluster.launcher import ControllerSettings, Launcher
from segue.cluster.registry import Registry
from segue.cluster.replica import Replica
from segue.cluster.worker_status import WorkerStatus

logger = logging.getLogger(__name__)

REFRESH_S = 1.0  # a watcher hears of the gauges at least this often
REGAIN_S = 0.5
STRAYS_EVERY_S = 10.0
ADOPTION_GRACE_S = 3.0  # a restarted controller lets survivors register before it starts anew


class Controller:
    """Lives in one event loop; nothing here is on the path of a token."""

    def __init__(self, settings: ControllerSettings, launcher: Launcher) -> None:
        self.incarnation = new_incarnation()
        self._settings = settings
        self._launcher = launcher
        self._control = settings.config.control
        self._registry = Registry(self._control, self.incarnation)
        self._bell = ChangeBell()
        self._announced = 0
        self._adopting = True
        self._attended = time.monotonic()
        self._regaining: asyncio.Task[None] | None = None
        self._pool_of = {
            f"{name}-{index}": name
            for name, pool in settings.config.pools.items()
            for index in range(pool.num_replicas)
        }
        self._replicas = {worker_id: self._replica(worker_id) for worker_id in self._pool_of}

    async def run(self, *, restarted: bool = False) -> None:
        """Reconcile until cancelled. `restarted`: an earlier controller's workers may live."""
        survivors = await self._adopt(restarted)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._judge_silence())
            if restarted:
                await self._wait_for_survivors()
            self._adopting = False
            self._bell.ring()
            for worker_id, replica in self._replicas.items():
                found = survivors.get(worker_id)
                registered = self._registry.newest(worker_id)
                if registered and registered.state is not WorkerState.DEAD:
                    found = registered.identity
                tasks.create_task(replica.run(found))
            tasks.create_task(self._end_strays())

    async def stop(self, grace_s: float) -> None:
        """End all workers. Call it after `run` was cancelled."""
        await self._launcher.stop_all(grace_s)

    def register(self, registration: Registration) -> RegistrationVerdict:
        identity = registration.peer.identity
        if registration.pool != self._pool_of.get(identity.worker_id):
            verdict = RegistrationVerdict(False, f"no {identity.worker_id} is asked for")
        elif not self._registry.knows(identity) and not self._may_adopt(identity):
            verdict = RegistrationVerdict(False, f"{identity} is not of this controller")
        else:
            verdict = self._registry.register(registration, time.monotonic())
        outcome = "registered" if verdict.accepted else f"not admitted: {verdict.reason}"
        logger.info("%s (pid %d) %s", identity, registration.pid, outcome)
        self._announce()
        return verdict

    def beat(self, identity: WorkerIdentity, status: WorkerStatus) -> bool:
        """Take a heartbeat; False asks the worker to register again."""
        if status.identity != identity:
            raise InvalidRequest(f"a heartbeat of {identity} holds the status of {status.identity}")
        known = self._registry.beat(identity, status, time.monotonic())
        self._announce()
        return known

    def sources_for(self, identity: WorkerIdentity) -> Sources:
        """The workers whose prompts and answers `identity` may be asked to go on with."""
        return self._registry.sources_for(identity)

    def disconnect(self, identity: WorkerIdentity) -> None:
        """The worker's heartbeat stream broke."""
        self._registry.disconnect(identity, time.monotonic())
        self._announce()

    def view(self) -> FleetView:
        return self._registry.snapshot(
            [self._pool_view(name) for name in self._settings.config.pools], time.monotonic()
        )

    async def watch(self) -> AsyncGenerator[FleetView, None]:
        """Yield the newest view on every change, at least every REFRESH_S; skips what is old."""
        while True:
            rung = self._bell.rung
            self._attend()
            if not self._adopting:  # else all would seem to be away for a moment
                yield self.view()
            await self._bell.wait_past(rung, REFRESH_S)

    async def _adopt(self, restarted: bool) -> dict[str, WorkerIdentity]:
        """Expect the workers that run already; end those that nobody asks for.

        Whatever a new deployment finds is left over from an earlier one and knows its token only.
        """
        survivors: dict[str, WorkerIdentity] = {}
        for identity in await self._launcher.running():
            pool = self._pool_of.get(identity.worker_id)
            if not restarted or pool is None or identity.worker_id in survivors:
                logger.warning("ending %s: nobody asks for it", identity)
                await self._launcher.kill(identity)
                continue
            survivors[identity.worker_id] = identity
            role = self._settings.config.pools[pool].role
            self._registry.expect(identity, pool, role, time.monotonic())
            self._registry.explain(identity, "waiting for it to register again")
        return survivors

    async def _end_strays(self) -> None:
        """Look again and again for processes that nobody asks for any more, and end them.

        A start that was given up may still come about, and an order to end may get lost; either
        would hold a GPU that nobody uses.
        """
        trouble = ""
        while True:
            await asyncio.sleep(STRAYS_EVERY_S)
            try:
                for identity in await self._launcher.running():
                    if not self._registry.wants(identity):
                        logger.warning("ending %s: nobody asks for it any more", identity)
                        await self._launcher.kill(identity)
                trouble = ""
            except SegueError as error:
                if trouble != error.message:
                    logger.warning("looking for stray workers: %s", error)
                trouble = error.message

    async def _wait_for_survivors(self) -> None:
        deadline = time.monotonic() + ADOPTION_GRACE_S
        while (left := deadline - time.monotonic()) > 0:
            rung = self._bell.rung
            newest = [self._registry.newest(worker_id) for worker_id in self._pool_of]
            if all(view and view.state is WorkerState.READY for view in newest):
                return
            await self._bell.wait_past(rung, left)

    def _may_adopt(self, identity: WorkerIdentity) -> bool:
        """A survivor that the launcher did not list, in a slot that nobody else survived in."""
        return self._adopting and self._registry.newest(identity.worker_id) is None

    async def _judge_silence(self) -> None:
        interval = min(0.25, self._control.suspect_after_s / 4)
        try:
            while True:
                self._attend()
                self._registry.tick(time.monotonic())
                self._announce()
                await asyncio.sleep(interval)
        finally:
            if self._regaining is not None:
                self._regaining.cancel()

    def _attend(self) -> None:
        """Notice that we stood still ourselves (stopped, or the machine was): the silence was ours.

        Streams broke meanwhile. Nobody is told of it before the workers had time to come back.
        """
        now = time.monotonic()
        away, self._attended = now - self._attended, now
        if away < self._control.suspect_after_s / 2 or self._adopting:
            return
        logger.warning("this controller stood still for %.1f s", away)
        self._registry.excuse(away)
        self._adopting = True
        self._regaining = asyncio.create_task(self._regain(), name="regain")

    async def _regain(self) -> None:
        await asyncio.sleep(REGAIN_S)  # streams that are broken are noticed by then
        await self._wait_for_survivors()
        self._adopting = False
        self._bell.ring()

    def _announce(self) -> None:
        if self._announced != self._registry.changes:
            self._announced = self._registry.changes
            self._bell.ring()

    def _replica(self, worker_id: str) -> Replica:
        pool = self._pool_of[worker_id]
        return Replica(
            worker_id,
            lambda identity: self._settings.worker(
                pool, identity, self._registry.usual_answer(pool)
            ),
            self._registry,
            self._launcher,
            self._bell,
            start_timeout_s=self._control.start_timeout_s,
            drain_timeout_s=self._control.drain_timeout_s,
        )

    def _pool_view(self, name: str) -> PoolView:
        pool = self._settings.config.pools[name]
        ready, reasons = 0, list[str]()
        for worker_id in (w for w, owner in self._pool_of.items() if owner == name):
            view = self._registry.newest(worker_id)
            if view is not None and view.state is WorkerState.READY:
                ready += 1
                continue
            state = view.state.value if view else "not started"
            why = self._replicas[worker_id].reason or (view.reason if view else "")
            reasons.append(f"{worker_id} {state}" + (f": {why}" if why else ""))
        return PoolView(name, pool.role, pool.num_replicas, ready, "; ".join(reasons))
