"""The control plane on a real Ray cluster of this machine; one cluster for the whole module."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from segue.cluster.config.environment import prepare_ray
from segue.cluster.config.file import parse_config
from segue.cluster.config.pool import PoolConfig
from segue.cluster.errors import ConfigurationError, Unavailable
from segue.cluster.fleet import FleetView
from segue.cluster.identity import WorkerIdentity, new_incarnation
from segue.cluster.launcher import ControllerSettings, LaunchState, WorkerSpec
from segue.cluster.rpc.fleet_watcher import FleetWatcher

TOKEN = "a-token-of-this-test"
NAMESPACE = "segue-test"
CONFIG = {
    "pools": {
        "prefill": {"role": "prefill", "replica": {"num_cpus": 0.5}},
        "decode": {"role": "decode", "replica": {"num_cpus": 0.5}},
    },
    "control": {"heartbeat_s": 0.2, "suspect_after_s": 1.5, "dead_after_s": 4},
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Any]:
    """The module of the launcher, with a cluster running."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
            patch.delenv(name, raising=False)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        prepare_ray(own_cluster=True)
        import segue.cluster.ray_launcher as ray_launcher

        ray_launcher.start_ray(parse_config(CONFIG).pools, NAMESPACE)
        yield ray_launcher
        ray_launcher.leave_ray()


def settings(**change: Any) -> ControllerSettings:
    return ControllerSettings.model_validate(
        {
            "config": CONFIG,
            "model_folder": "",
            "cluster_token": TOKEN,
            "locator": {"kind": "ray", "namespace": NAMESPACE},
            "host": "127.0.0.1",
            "worker_entry": "dummy_worker:DummyWorker",
            **change,
        }
    )


def pids(view: FleetView) -> dict[str, int]:
    return {worker.identity.worker_id: worker.pid for worker in view.workers}


def both_ready(view: FleetView) -> bool:
    return len(view.ready_workers()) == 2


async def test_two_pools_survive_a_worker_and_the_controller(launcher: Any) -> None:
    controller = launcher.RayController(NAMESPACE)
    await controller.start(settings())
    with pytest.raises(ConfigurationError, match=NAMESPACE):
        await launcher.RayController(NAMESPACE).start(settings())
    locator = launcher.RayLocator(NAMESPACE)
    watcher = FleetWatcher(locator, TOKEN)
    following = asyncio.create_task(watcher.run())
    try:
        await watcher.wait_until(both_ready, 40)
        first = pids(watcher.view)
        assert set(first) == {"prefill-0", "decode-0"}

        os.kill(first["decode-0"], signal.SIGKILL)
        await watcher.wait_until(lambda view: not both_ready(view), 3)
        await watcher.wait_until(both_ready, 20)
        second = pids(watcher.view)
        assert second["prefill-0"] == first["prefill-0"]
        assert second["decode-0"] != first["decode-0"]

        life = watcher.view.controller_incarnation
        os.kill(controller_pid(), signal.SIGKILL)
        await watcher.wait_until(
            lambda view: view.controller_incarnation != life and both_ready(view), 30
        )
        assert pids(watcher.view) == second
        assert not await locator.gone()
    finally:
        await controller.stop(2.0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert await launcher.RayLauncher(NAMESPACE).running() == ()
    assert await locator.gone()
    assert not any(psutil.pid_exists(pid) for pid in second.values())


def controller_pid() -> int:
    """Ray's own children carry the actor's name in their title."""
    titles = {p.pid: p.name() + " ".join(p.cmdline()) for p in psutil.Process().children(True)}
    return next(pid for pid, title in titles.items() if "ray::ControllerActor" in title)


@contextmanager
def busy_gcs() -> Iterator[None]:
    """Ray's control store answers nobody."""
    (gcs,) = [p for p in psutil.Process().children(True) if p.name() == "gcs_server"]
    gcs.suspend()
    try:
        yield
    finally:
        gcs.resume()


def spec(pool: PoolConfig, entry: str) -> WorkerSpec:
    identity = WorkerIdentity("decode-0", new_incarnation())
    plan = settings(worker_entry=entry).worker("decode", identity)
    return WorkerSpec(identity, "decode", "decode", pool.replica, entry, plan.settings)


@pytest.mark.parametrize(
    ("entry", "told", "is_final"),
    [
        ("BrokenWorker", "RuntimeError: no such device: cuda:9", False),
        ("MisconfiguredWorker", "there is no libfast here; to install it: pip install fast", True),
    ],
)
async def test_a_failed_start_is_told(launcher: Any, entry: str, told: str, is_final: bool) -> None:
    starter = launcher.RayLauncher(NAMESPACE)
    failing = spec(PoolConfig(role="decode"), f"dummy_worker:{entry}")
    await starter.start(failing)
    await starter.start(failing)  # the same identity again: nothing happens
    assert await starter.running() == (failing.identity,)
    async with asyncio.timeout(20):
        while (probe := await starter.probe(failing.identity)).state is not LaunchState.GONE:
            await asyncio.sleep(0.1)
    assert (probe.reason, probe.is_final) == (told, is_final)
    assert await starter.kill(failing.identity)
    assert await starter.running() == ()


async def test_what_a_pending_worker_waits_for_is_told(launcher: Any) -> None:
    starter = launcher.RayLauncher(NAMESPACE)
    pool = PoolConfig.model_validate({"role": "decode", "replica": {"resources": {"decode": 7}}})
    greedy = spec(pool, "dummy_worker:DummyWorker")
    await starter.start(greedy)
    probe = await starter.probe(greedy.identity)
    assert probe.state is LaunchState.PENDING
    assert probe.reason == "waiting for a node with {decode: 7}"
    async with asyncio.timeout(10):  # it can not answer, so it is not waited for
        await starter.stop_all(grace_s=60)
    assert await starter.running() == ()


async def test_a_worker_that_is_given_up_before_ray_has_created_it_never_lives(
    launcher: Any,
) -> None:
    starter = launcher.RayLauncher(NAMESPACE)
    pool = PoolConfig.model_validate({"role": "decode", "replica": {"num_cpus": 0.5}})
    late = spec(pool, "dummy_worker:DummyWorker")
    with busy_gcs():
        await starter.start(late)  # that Ray is busy is no failure
        probe = await starter.probe(late.identity)
        assert probe.state is LaunchState.PENDING and "creating" in probe.reason
        with pytest.raises(Unavailable):
            await starter.kill(late.identity)
    assert await starter.kill(late.identity)
    for _ in range(20):
        assert await starter.running() == ()
        await asyncio.sleep(0.1)
