"""The controller with real worker processes: death, silence, restart, refusal."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from segue.cluster.controller import Controller
from segue.cluster.fleet import DeathCause, FleetView, Registration, WorkerState, WorkerView
from segue.cluster.identity import Peer, WorkerIdentity, new_incarnation
from segue.cluster.launcher import ControllerSettings, StaticLocator
from segue.cluster.process_launcher import ProcessLauncher
from segue.cluster.rpc.controller_service import serve_controller
from segue.cluster.rpc.fleet_watcher import FleetWatcher

TOKEN = "a-token-of-this-test"
POOLS = {
    "prefill": {"role": "prefill"},
    "decode": {"role": "decode"},
}
CONTROL = {"heartbeat_s": 0.1, "suspect_after_s": 0.8, "dead_after_s": 2.5}


@pytest.fixture(autouse=True)
def _entries_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


class Plane:
    """One controller with its server and a watcher that remembers every state it was told."""

    def __init__(self, launcher: ProcessLauncher, port: int, **settings: object) -> None:
        self.launcher = launcher
        self.settings = ControllerSettings.model_validate(
            {
                "config": {"pools": POOLS, "control": CONTROL},
                "model_folder": "",
                "cluster_token": TOKEN,
                "locator": {"kind": "static", "address": f"127.0.0.1:{port}"},
                "host": "127.0.0.1",
                "worker_entry": "dummy_worker:DummyWorker",
                **settings,
            }
        )
        self.port = port
        self.watcher = FleetWatcher(StaticLocator(f"127.0.0.1:{port}"), TOKEN)
        self.history: list[tuple[WorkerIdentity, WorkerState]] = []
        self.watcher.on_change(self._remember)

    def _remember(self, view: FleetView) -> None:
        for worker in view.workers:
            seen = [state for identity, state in self.history if identity == worker.identity]
            if not seen or seen[-1] is not worker.state:
                self.history.append((worker.identity, worker.state))

    @asynccontextmanager
    async def running(self, *, restarted: bool = False) -> AsyncIterator[Controller]:
        controller = Controller(self.settings, self.launcher)
        server = await serve_controller(
            controller, token=TOKEN, host="127.0.0.1", heartbeat_s=0.1, port=self.port
        )
        tasks = [asyncio.create_task(controller.run(restarted=restarted))]
        tasks.append(asyncio.create_task(self.watcher.run()))
        try:
            yield controller
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop()

    def states_of(self, identity: WorkerIdentity) -> list[WorkerState]:
        return [state for known, state in self.history if known == identity]

    async def ready(self, count: int, *, but: tuple[WorkerIdentity, ...] = ()) -> FleetView:
        def enough(view: FleetView) -> bool:
            ready = view.ready_workers()
            return len(ready) == count and not any(w.identity in but for w in ready)

        await self.watcher.wait_until(enough, 20)
        return self.watcher.view


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def launcher() -> AsyncIterator[ProcessLauncher]:
    launcher = ProcessLauncher()
    yield launcher
    await launcher.stop_all(1.0)
    assert not await launcher.running()


def worker_named(view: FleetView, worker_id: str) -> WorkerView:
    return next(worker for worker in view.workers if worker.identity.worker_id == worker_id)


async def test_a_controller_that_stood_still_blames_nobody(
    launcher: ProcessLauncher, port: int
) -> None:
    """Stopped for longer than workers may be silent, it must not kill them all as it goes on."""
    plane = Plane(launcher, port)
    async with plane.running():
        view = await plane.ready(2)
        time.sleep(CONTROL["dead_after_s"] + 0.5)  # whatever runs in this loop stands still
        await asyncio.sleep(2.0)
        assert {w.identity for w in (await plane.ready(2)).workers} == {
            w.identity for w in view.workers
        }
        told = {state for identity, state in plane.history}
        assert told <= {WorkerState.STARTING, WorkerState.READY}


async def test_killed_worker_is_noticed_and_replaced(launcher: ProcessLauncher, port: int) -> None:
    plane = Plane(launcher, port)
    async with plane.running():
        view = await plane.ready(2)
        assert [pool.ready for pool in view.pools] == [1, 1]
        assert not any(pool.reason for pool in view.pools)
        victim = worker_named(view, "decode-0")
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        await plane.watcher.wait_until(lambda v: len(v.ready_workers()) == 1, 3)
        unrouted = time.monotonic() - began
        view = await plane.ready(2)
        heir = worker_named(view, "decode-0")
        assert heir.identity.incarnation != victim.identity.incarnation
        assert heir.pid != victim.pid
        assert unrouted < 3
        states = plane.states_of(victim.identity)
        assert states[-1] is WorkerState.DEAD and WorkerState.READY in states
        assert plane.states_of(heir.identity) == [WorkerState.STARTING, WorkerState.READY]
        bystander = worker_named(view, "prefill-0")
        assert plane.states_of(bystander.identity)[-1] is WorkerState.READY
        assert WorkerState.DEAD not in plane.states_of(bystander.identity)


async def test_a_new_worker_is_told_what_its_pool_has_learned(
    launcher: ProcessLauncher, port: int
) -> None:
    plane = Plane(launcher, port)
    async with plane.running():

        def gauges(view: FleetView) -> dict[str, float]:
            """Of the living decode worker, once it has beaten."""
            status = worker_named(view, "decode-0").status if view.ready_workers() else None
            return {} if status is None else status.gauges

        victim = worker_named(await plane.ready(2), "decode-0")
        await plane.watcher.wait_until(lambda view: bool(gauges(view)), 10)
        assert "heard_tokens" not in gauges(plane.watcher.view)
        os.kill(victim.pid, signal.SIGKILL)
        await plane.watcher.wait_until(lambda view: gauges(view).get("heard_tokens") == 90, 20)


async def test_silent_worker_is_suspect_then_replaced(launcher: ProcessLauncher, port: int) -> None:
    plane = Plane(launcher, port)
    async with plane.running():
        victim = worker_named(await plane.ready(2), "prefill-0")
        os.kill(victim.pid, signal.SIGSTOP)
        view = await plane.ready(2, but=(victim.identity,))
        heir = worker_named(view, "prefill-0")
        assert heir.identity != victim.identity
        assert plane.states_of(victim.identity)[-3:] == [
            WorkerState.READY,
            WorkerState.SUSPECT,
            WorkerState.DEAD,
        ]
        assert victim.identity not in await launcher.running()


async def test_suspect_worker_that_beats_again_is_ready_again(
    launcher: ProcessLauncher, port: int
) -> None:
    plane = Plane(launcher, port)
    async with plane.running():
        victim = worker_named(await plane.ready(2), "prefill-0")
        os.kill(victim.pid, signal.SIGSTOP)
        await plane.watcher.wait_until(lambda v: len(v.ready_workers()) == 1, 5)
        os.kill(victim.pid, signal.SIGCONT)
        view = await plane.ready(2)
        assert worker_named(view, "prefill-0").identity == victim.identity


async def test_restarted_controller_adopts_its_workers(
    launcher: ProcessLauncher, port: int
) -> None:
    plane = Plane(launcher, port)
    async with plane.running():
        before = await plane.ready(2)
    assert plane.watcher.view.workers  # the last view outlives the controller
    async with plane.running(restarted=True) as controller:
        life = controller.incarnation
        await plane.watcher.wait_until(lambda v: v.controller_incarnation == life, 10)
        after = await plane.ready(2)
        assert {w.identity for w in after.workers} == {w.identity for w in before.workers}
        assert {w.pid for w in after.workers} == {w.pid for w in before.workers}
        assert len(await launcher.running()) == 2


async def test_restart_replaces_what_died_meanwhile(launcher: ProcessLauncher, port: int) -> None:
    plane = Plane(launcher, port)
    async with plane.running():
        before = await plane.ready(2)
    victim = worker_named(before, "decode-0")
    await launcher.kill(victim.identity)
    async with plane.running(restarted=True):
        after = await plane.ready(2, but=(victim.identity,))
        assert worker_named(after, "prefill-0").pid == worker_named(before, "prefill-0").pid
        assert len(await launcher.running()) == 2


async def test_new_deployment_ends_what_an_earlier_one_left(
    launcher: ProcessLauncher, port: int
) -> None:
    plane = Plane(launcher, port)
    async with plane.running():
        left = {worker.identity for worker in (await plane.ready(2)).workers}
    async with plane.running():
        view = await plane.ready(2, but=tuple(left))
        assert left.isdisjoint(await launcher.running())
        assert {w.identity for w in view.workers} == set(await launcher.running())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_folder": "fails"}, "the weights are not there"),
        ({"worker_entry": "dummy_worker:BrokenWorker"}, "no such device: cuda:9"),
    ],
)
async def test_failing_start_is_told_and_backs_off(
    launcher: ProcessLauncher, port: int, change: dict[str, str], told: str
) -> None:
    plane = Plane(launcher, port, **change)
    async with plane.running():
        await plane.watcher.wait_until(
            lambda v: (
                all(told in p.reason and "starts again" in p.reason for p in v.pools)
                and bool(v.pools)
            ),
            20,
        )
        dead = worker_named(plane.watcher.view, "decode-0")
        assert dead.state is WorkerState.DEAD and told in dead.reason
        assert told in dead.last_end
        assert dead.deaths == {DeathCause.EXITED: dead.restarts + 1}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("MisconfiguredWorker", "there is no libfast here; to install it: pip install fast"),
        ("Absent", "worker entry 'dummy_worker:Absent': module 'dummy_worker' has no attribute"),
    ],
)
async def test_a_worker_that_is_misconfigured_is_told_as_such_and_tried_rarely(
    launcher: ProcessLauncher, port: int, entry: str, told: str
) -> None:
    plane = Plane(launcher, port, worker_entry=f"dummy_worker:{entry}")
    async with plane.running():
        await plane.watcher.wait_until(
            lambda v: bool(v.pools) and all("starts again in 30 s" in p.reason for p in v.pools), 20
        )
        for worker in plane.watcher.view.workers:
            assert worker.state is WorkerState.DEAD
            assert worker.deaths == {DeathCause.MISCONFIGURED: 1}
            assert worker.reason.startswith(told) and worker.last_end == worker.reason


@pytest.mark.parametrize(
    ("sickness", "cause", "told"),
    [
        ("wedged", DeathCause.WEDGED, "wedged: so it was told"),
        ("failed", DeathCause.FAILED, "failed: so it was told"),
        ("loop_hangs", DeathCause.SILENT, "silent for"),
        ("never_ready", DeathCause.NOT_STARTED, "was not ready within 3 s of its start"),
    ],
)
async def test_a_worker_that_lives_but_does_not_work_is_replaced(
    launcher: ProcessLauncher,
    port: int,
    tmp_path: Path,
    sickness: str,
    cause: DeathCause,
    told: str,
) -> None:
    """Killed, and started again; who did it and why is told ever after."""
    sick_once = tmp_path / "sick"
    config = {"pools": {"decode": {"role": "both"}}, "control": {**CONTROL, "start_timeout_s": 3}}
    plane = Plane(
        *(launcher, port),
        config=config,
        worker_entry="dummy_worker:SickWorker",
        model_folder=f"{sickness} {sick_once}",
    )
    if sickness == "never_ready":
        sick_once.touch()
    async with plane.running():
        if sickness != "never_ready":
            await plane.ready(1)
            sick_once.touch()
        await plane.watcher.wait_until(lambda v: any(w.restarts for w in v.workers), 20)
        (heir,) = (await plane.ready(1)).workers
        assert not sick_once.exists()
        assert heir.restarts == 1 and heir.deaths == {cause: 1}
        assert heir.last_end.startswith(told)
        assert await launcher.running() == (heir.identity,), "the first life's process is gone"


async def test_strangers_and_zombies_are_refused(launcher: ProcessLauncher, port: int) -> None:
    plane = Plane(launcher, port)
    async with plane.running() as controller:
        view = await plane.ready(2)
        stranger = WorkerIdentity("decode-0", new_incarnation())
        nobody = WorkerIdentity("decode-7", new_incarnation())
        for identity, pool in [(stranger, "decode"), (nobody, "decode"), (stranger, "prefill")]:
            peer = Peer(identity, "127.0.0.1:9")
            verdict = controller.register(Registration(peer, pool, "decode", {}, 1))
            assert not verdict.accepted and verdict.reason
        assert controller.view().ready_workers() and len(controller.view().workers) == 2
        assert {w.identity for w in controller.view().workers} == {w.identity for w in view.workers}


async def test_a_worker_that_drains_on_sigterm_is_replaced_when_it_has_left(
    launcher: ProcessLauncher, port: int
) -> None:
    """It says so at once, not with its next beat; and its going is no failure to back off from."""
    plane = Plane(
        launcher,
        port,
        config={"pools": POOLS, "control": {**CONTROL, "heartbeat_s": 0.7, "suspect_after_s": 1.5}},
    )
    async with plane.running():
        leaver = worker_named(await plane.ready(2), "decode-0")
        os.kill(leaver.pid, signal.SIGTERM)
        await plane.watcher.wait_until(
            lambda v: worker_named(v, "decode-0").identity != leaver.identity, 10
        )
        heir = worker_named(await plane.ready(2), "decode-0")
        assert heir.deaths == {DeathCause.DRAINED: 1}
        assert heir.last_end == "drained (SIGTERM)"
        assert plane.states_of(leaver.identity)[-2:] == [WorkerState.DRAINING, WorkerState.DEAD]


async def test_a_worker_that_drains_for_ever_is_ended(
    launcher: ProcessLauncher, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.cluster.replica.DRAIN_GRACE_S", 0.3)
    plane = Plane(
        launcher,
        port,
        config={
            "pools": {"decode": {"role": "both"}},
            "control": {**CONTROL, "drain_timeout_s": 0.3},
        },
        worker_entry="dummy_worker:ClingingWorker",
    )
    async with plane.running():
        (leaver,) = (await plane.ready(1)).workers
        os.kill(leaver.pid, signal.SIGTERM)
        await plane.watcher.wait_until(lambda v: v.workers[0].identity != leaver.identity, 10)
        (heir,) = (await plane.ready(1)).workers
        assert heir.last_end == "did not leave (SIGTERM)"
        assert await launcher.running() == (heir.identity,)


async def test_a_process_that_nobody_asks_for_is_ended(
    launcher: ProcessLauncher, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that was given up and came about all the same; it never registers."""
    monkeypatch.setattr("segue.cluster.controller.STRAYS_EVERY_S", 0.2)
    plane = Plane(launcher, port)
    async with plane.running() as controller:
        wanted = {worker.identity for worker in (await plane.ready(2)).workers}
        (tmp_path / "sick").touch()
        late = Plane(
            *(launcher, port),
            worker_entry="dummy_worker:SickWorker",
            model_folder=f"never_ready {tmp_path / 'sick'}",
        )
        stray = WorkerIdentity("decode-0", new_incarnation())
        await launcher.start(late.settings.worker("decode", stray))
        assert stray in await launcher.running()
        async with asyncio.timeout(10):
            while stray in await launcher.running():
                await asyncio.sleep(0.05)
        assert set(await launcher.running()) == wanted
        assert {w.identity for w in controller.view().ready_workers()} == wanted
