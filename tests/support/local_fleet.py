"""A whole cluster but for Ray and HTTP: controller, worker processes, NIXL, journeys."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from segue.cluster.config.whole import SegueConfig
from segue.cluster.controller import Controller
from segue.cluster.errors import SegueError
from segue.cluster.fleet import WorkerView
from segue.cluster.identity import new_incarnation
from segue.cluster.launcher import (
    WORKER_ENTRY,
    ControllerSettings,
    LocatorConfig,
    StaticLocator,
)
from segue.cluster.process_launcher import ProcessLauncher
from segue.cluster.request import FinishReason, GenerationRequest, SamplingParams, StopRule
from segue.cluster.rpc.controller_service import serve_controller
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.cluster.rpc.security import TOKEN_ALONE, Security, load_security
from segue.cluster.rpc.worker_client import WorkerClient
from segue.cluster.worker_status import WorkerStatus
from segue.router.evacuation import Evacuation
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.router.migration import Migrations
from segue.router.rebinding import Rebinding

TOKEN = "cluster-token-of-tests"


@dataclass(slots=True)
class Answer:
    """Everything one journey gave."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    cached_tokens: int = 0
    times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class LocalFleet:
    watcher: FleetWatcher
    links: WorkerLinks
    journeys: Journeys
    migrations: Migrations
    security: Security = TOKEN_ALONE

    async def ask(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        sampling: SamplingParams | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
        request_id: str | None = None,
        on_token: Callable[[Answer], None] | None = None,
    ) -> Answer:
        answer = Answer()
        request = GenerationRequest(
            request_id or new_incarnation(),
            tuple(prompt),
            sampling or SamplingParams(temperature=0.0),
            StopRule(max_tokens, 0, stop_token_ids),
        )
        async with aclosing(self.journeys.generate(request)) as events:
            async for event in events:
                answer.tokens.extend(event.token_ids)
                answer.times.extend([time.monotonic()] * len(event.token_ids))
                answer.finish = event.finish
                answer.cached_tokens = answer.cached_tokens or event.cached_tokens
                if on_token is not None:
                    on_token(answer)
        return answer

    def worker(self, role: str) -> WorkerView:
        return next(w for w in self.watcher.view.ready_workers() if w.role == role)

    def kill(self, role: str, signum: int = signal.SIGKILL) -> WorkerView:
        victim = self.worker(role)
        os.kill(victim.pid, signum)
        return victim

    async def statuses(self) -> list[WorkerStatus]:
        found = []
        for worker in self.watcher.view.ready_workers():
            assert worker.peer is not None
            client = WorkerClient(worker.peer, TOKEN, security=self.security)
            try:
                found.append(await client.status(deadline_s=5))
            finally:
                await client.close()
        return found

    async def settled(self, timeout_s: float = 20.0) -> list[WorkerStatus]:
        """Wait until nothing is held anywhere; raises AssertionError that says what still is.

        A worker that was killed may be listed a moment longer; the living must let go without it.
        """
        end = time.monotonic() + timeout_s
        while True:
            held: object
            try:
                statuses = await self.statuses()
                held = {str(s.identity): leftovers(s) for s in statuses if leftovers(s)}
                if not held:
                    return statuses
            except SegueError as error:
                held = error
            assert time.monotonic() < end, f"still held: {held}"
            await asyncio.sleep(0.1)

    async def ready(self, count: int, timeout_s: float = 60.0) -> None:
        def enough(view: object) -> bool:
            ready = self.watcher.view.ready_workers()
            return len(ready) == count and all(self.links.usable(w.identity) for w in ready)

        end = time.monotonic() + timeout_s
        while not enough(None):
            assert time.monotonic() < end, f"not ready: {self.watcher.view}"
            await asyncio.sleep(0.1)


def leftovers(status: WorkerStatus) -> dict[str, float]:
    """Whatever an idle worker must not hold."""
    names = (
        "kv_blocks_owned",
        "kv_blocks_leased",
        "kv_blocks_landing",
        "kv_blocks_promised",
        "leases",
        "reads_in_flight",
        "running_requests",
        "landing_requests",
        "waiting_requests",
    )
    gauges, counters = status.gauges, status.counters
    found = {name: gauges[name] for name in names if gauges[name]}
    ended = sum(n for name, n in counters.items() if name.startswith("attempts_ended_"))
    if ended != counters["attempts_received"]:
        found["attempts_open"] = counters["attempts_received"] - ended
    idle = gauges["kv_blocks_free"] + gauges["kv_blocks_cached"]
    if idle != gauges["kv_blocks_total"]:
        found["kv_blocks_lost"] = gauges["kv_blocks_total"] - idle
    return found


@asynccontextmanager
async def local_fleet(
    config: SegueConfig, model_folder: Path, *, worker_entry: str = WORKER_ENTRY
) -> AsyncIterator[LocalFleet]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    locator = LocatorConfig(kind="static", address=f"127.0.0.1:{port}", namespace="")
    settings = ControllerSettings(
        config=config,
        model_folder=str(model_folder),
        cluster_token=TOKEN,
        locator=locator,
        host="127.0.0.1",
        worker_entry=worker_entry,
    )
    security = load_security(config.control)
    launcher = ProcessLauncher()
    controller = Controller(settings, launcher)
    server = await serve_controller(
        controller,
        token=TOKEN,
        host="127.0.0.1",
        heartbeat_s=config.control.heartbeat_s,
        port=port,
        security=security,
    )
    watcher = FleetWatcher(StaticLocator(locator.address), TOKEN, security)
    links = WorkerLinks(new_incarnation(), TOKEN, security)
    journeys = Journeys(
        watcher, links, config.gateway.recovery, config.gateway.admission.request_timeout_s
    )
    tasks = [asyncio.create_task(controller.run()), asyncio.create_task(watcher.run())]
    longest_move_s = config.transfer.longest_move_s
    migrations = Migrations(journeys, links, lambda: watcher.view, longest_move_s)
    evacuation = Evacuation(watcher, journeys, migrations)
    rebinding = Rebinding(watcher, journeys, links, config.gateway.recovery.rebind_wait_s)
    fleet = LocalFleet(watcher, links, journeys, migrations, security)
    try:
        await fleet.ready(sum(pool.num_replicas for pool in config.pools.values()))
        yield fleet
    finally:
        await evacuation.close()
        await rebinding.close()
        await links.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await launcher.stop_all(5.0)
        await server.stop()
