"""Everything Segue asks of Ray: a cluster, worker actors, the controller actor. Its only importer.

Workers are detached actors, so that they outlive a controller; the controller is an actor of the
`segue serve` process and ends with it. Ray starts and ends processes; no request passes through.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions
import ray.util

from segue.cluster.config.pool import PoolConfig
from segue.cluster.controller_host import ControllerHost
from segue.cluster.errors import ConfigurationError, InternalError, Unavailable
from segue.cluster.identity import WorkerIdentity
from segue.cluster.launcher import ControllerSettings, LaunchState, Probe, WorkerSpec
from segue.cluster.ray_address import check_ray_address
from segue.cluster.ray_words import WORKER_PREFIX, actor_name, identity_of, obituary, shortage
from segue.cluster.worker_entry import StartFailure
from segue.cluster.worker_host import WorkerHost

logger = logging.getLogger(__name__)

CONTROLLER_NAME = "segue-controller"
OBJECT_STORE_BYTES = 80_000_000  # about the least Ray accepts; nothing of ours goes through it
CALL_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 10.0
CONTROLLER_TIMEOUT_S = 60.0
ALIVE_EVERY_S = 2.0
USUAL_START_S = 10.0  # from asking for an actor to its process
CREATING_THREADS = 8
ENDINGS = (ray.exceptions.RayActorError, ray.exceptions.RayTaskError)


def start_ray(pools: Mapping[str, PoolConfig], namespace: str) -> None:
    """Start a Ray cluster of this machine, with exactly what `pools` need; it ends with us.

    Call it in the main thread: Ray's processes die with the thread that started them.
    """
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    num_cpus, needs_gpu = 0.0, False
    for name, pool in pools.items():
        num_cpus += pool.num_replicas * pool.replica.num_cpus
        needs_gpu = needs_gpu or pool.replica.num_gpus > 0
        labels.update(pool.replica.label_selector)
        for resource, amount in (pool.replica.resources or {name: 1.0}).items():
            resources[resource] = resources.get(resource, 0.0) + pool.num_replicas * amount
    _init(
        address="local",  # else RAY_ADDRESS would have a say
        num_cpus=max(1, math.ceil(num_cpus)),
        num_gpus=None if needs_gpu else 0,
        resources={name: amount for name, amount in resources.items() if amount},
        labels=labels or None,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        namespace=namespace,
    )


def join_ray(address: str, namespace: str) -> None:
    """Become a driver of a running cluster ("auto" or host:port). Raises ConfigurationError."""
    check_ray_address(address)
    _init(address=address, namespace=namespace)


def leave_ray() -> None:
    """End our own cluster, or our part in a joined one."""
    ray.shutdown()


def _init(**options: Any) -> None:
    # Ray prints other processes' deaths on our stdout in spite of log_to_driver; the fleet view
    # tells them in our own words. Should the switch go away, nothing but the noise comes back.
    vars(sys.modules["ray._private.worker"])["_worker_logs_enabled"] = False
    try:
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigurationError(f"Ray could not be started or joined: {error}") from error


class WorkerActor(WorkerHost):
    def __init__(self, entry: str, settings: str) -> None:
        super().__init__(entry, settings, _node_ip())


class ControllerActor(ControllerHost):
    def __init__(self, settings_json: str, namespace: str) -> None:
        settings = ControllerSettings.model_validate_json(settings_json)
        super().__init__(
            settings,
            lambda: RayLauncher(namespace),
            host=settings.host or _node_ip(),
            restarted=bool(ray.get_runtime_context().was_current_actor_reconstructed),
        )


def _node_ip() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Life:
    """What this launcher knows of one worker actor."""

    needs: dict[str, float]
    creation: Future[Any] | None = None  # None: by an earlier controller
    asked: float = field(default_factory=time.monotonic)
    running: bool = False  # its process exists
    failure: StartFailure | None = None
    unwanted: bool = False  # to be ended as soon as it is born
    follower: asyncio.Task[None] | None = None

    @property
    def handle(self) -> Any | None:
        """None: Ray has not created the actor, or could not."""
        if self.creation is None or not self.creation.done() or self.creation.cancelled():
            return None
        return None if self.creation.exception() else self.creation.result()

    @property
    def may_be_born(self) -> bool:
        return self.creation is not None and not self.creation.done()


class RayLauncher:
    """A Launcher whose workers are detached actors named after their identity."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._lives: dict[WorkerIdentity, _Life] = {}
        # Apart from all other calls: a Ray that creates no actors may still end some.
        self._creating = ThreadPoolExecutor(CREATING_THREADS, "creating")

    async def start(self, spec: WorkerSpec) -> None:
        """A Ray that has much to do takes its time; the worker is pending meanwhile."""
        if spec.identity in self._lives:
            return
        replica = spec.replica
        needs = {"CPU": replica.num_cpus, "GPU": replica.num_gpus, **spec.resources}
        options: dict[str, Any] = {
            "name": actor_name(spec.identity),
            "namespace": self._namespace,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_concurrency": 4,
            "num_cpus": replica.num_cpus,
            "num_gpus": replica.num_gpus,
            "resources": spec.resources,
        }
        if replica.label_selector:
            options["label_selector"] = replica.label_selector
        actor = ray.remote(WorkerActor).options(**options)
        creation = self._creating.submit(actor.remote, spec.entry, spec.settings)
        life = _Life({name: amount for name, amount in needs.items() if amount}, creation)
        self._lives[spec.identity] = life
        created = asyncio.wrap_future(creation)
        life.follower = asyncio.create_task(self._follow(spec.identity, life, created))
        await asyncio.wait({created}, timeout=CALL_TIMEOUT_S)
        if created.done() and not created.cancelled():
            error = created.exception()
            if isinstance(error, ray.exceptions.RayError):
                raise Unavailable(f"Ray can not create its actor: {obituary(error)}") from error

    async def probe(self, identity: WorkerIdentity) -> Probe:
        life = self._lives.setdefault(identity, _Life({}, running=True))
        if life.may_be_born:
            waiting = time.monotonic() - life.asked
            return Probe(
                LaunchState.PENDING, f"Ray has been creating its actor for {waiting:.0f} s"
            )
        if life.failure is not None:
            return Probe(LaunchState.GONE, life.failure.reason, life.failure.is_final)
        handle = await self._find(identity)
        if handle is None:
            return Probe(LaunchState.GONE, await _ending_of(life.handle))
        if life.running:
            return Probe(LaunchState.RUNNING)
        patient = time.monotonic() - life.asked < USUAL_START_S
        waiting_for = await _within(asyncio.to_thread(_missing, life.needs, patient))
        return Probe(LaunchState.PENDING, waiting_for)

    async def kill(self, identity: WorkerIdentity) -> bool:
        """Once Ray has withdrawn the name it ends the process, within 5 s even a stopped one;
        until then it does not give the worker's resources to anybody else."""
        life = self._lives.get(identity)
        if life is not None:
            life.unwanted = True
            if life.creation is not None:
                life.creation.cancel()  # works as long as Ray has not been asked
        deadline = asyncio.get_running_loop().time() + KILL_TIMEOUT_S
        while True:
            may_be_born = life is not None and life.may_be_born  # asked before the name is
            handle = await self._find(identity)
            if handle is None and not may_be_born:
                self._forget(identity)
                return True
            if asyncio.get_running_loop().time() > deadline:
                return False
            if handle is not None:
                await _kill(handle)
            await asyncio.sleep(0.1)

    def _forget(self, identity: WorkerIdentity) -> None:
        life = self._lives.pop(identity, None)
        if life and life.follower:
            life.follower.cancel()

    async def running(self) -> tuple[WorkerIdentity, ...]:
        listed = await _within(asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True))
        return tuple(
            identity_of(actor["name"])
            for actor in listed
            if actor["namespace"] == self._namespace and actor["name"].startswith(WORKER_PREFIX)
        )

    async def stop_all(self, grace_s: float) -> None:
        identities = await self.running()
        handles = [await self._find(identity) for identity in identities if self._runs(identity)]
        stops = asyncio.gather(
            *(_answer(handle.stop.remote()) for handle in handles if handle is not None),
            return_exceptions=True,
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(stops, grace_s)
        await asyncio.gather(*(self.kill(identity) for identity in identities))

    def _runs(self, identity: WorkerIdentity) -> bool:
        """False for a worker that waits for a node: it would never answer a call."""
        life = self._lives.get(identity)
        return life is None or life.running

    async def _follow(
        self, identity: WorkerIdentity, life: _Life, created: asyncio.Future[Any]
    ) -> None:
        """See a new actor through its start. Not bounded here: the controller bounds it."""
        try:
            handle = await created
            if life.unwanted:
                logger.warning("%s was created after it was given up: ending it", identity)
                await self.kill(identity)
                return
            await handle.pid.remote()
            life.running = True
            life.failure = await handle.start.remote()
        except ValueError as error:  # the name is taken: that identity was started before
            logger.info("%s: %s", identity, error)
            life.running = True
            return
        except (Unavailable, ray.exceptions.RayError) as error:
            life.failure = StartFailure(obituary(error), is_final=False)
        if life.failure is not None:
            logger.error("%s: %s", identity, life.failure.reason)

    async def _find(self, identity: WorkerIdentity) -> Any | None:
        return await _find_actor(actor_name(identity), self._namespace)


class RayLocator:
    """Finds the controller by its actor's name."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    async def address(self) -> str:
        handle = await _find_actor(CONTROLLER_NAME, self._namespace)
        if handle is None:
            raise Unavailable(f"no controller in Ray namespace '{self._namespace}'")
        try:
            return str(await _within(handle.address.remote()))
        except ray.exceptions.ActorUnavailableError as error:
            raise Unavailable("the controller is restarting") from error
        except ENDINGS as error:
            raise Unavailable(f"the controller is restarting: {obituary(error)}") from error

    async def gone(self) -> bool:
        """Ray keeps the name while it restarts the controller, not after `segue serve` ended."""
        return await _find_actor(CONTROLLER_NAME, self._namespace) is None


class RayController:
    """The driver's hold on the controller actor."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handle: Any = None

    async def start(self, settings: ControllerSettings) -> None:
        """Return once it serves. Raises ConfigurationError if the namespace is taken."""
        actor = ray.remote(ControllerActor).options(
            name=CONTROLLER_NAME,
            namespace=self._namespace,
            max_restarts=-1,
            max_concurrency=32,
            num_cpus=0,
        )
        try:
            self._handle = actor.remote(settings.model_dump_json(), self._namespace)
        except ValueError as error:
            raise ConfigurationError(
                f"a deployment runs already in Ray namespace '{self._namespace}'"
            ) from error
        try:
            await _within(self._handle.address.remote(), CONTROLLER_TIMEOUT_S)
        except ENDINGS as error:
            raise InternalError(f"the controller did not start: {obituary(error)}") from error

    async def stop(self, grace_s: float) -> None:
        """End all workers, then the controller; a controller that is dead is done without.

        Raises Unavailable if Ray itself is gone: then its workers end by themselves.
        """
        try:
            await self._stop_workers(grace_s)
        except (TimeoutError, *ENDINGS) as error:
            why = obituary(error) or "no answer in time"
            logger.warning("the controller could not stop its workers: %s", why)
            await RayLauncher(self._namespace).stop_all(0.0)
        await _kill(self._handle)

    async def kill(self) -> None:
        """End the controller, which would start workers anew, then all workers: no grace."""
        await _kill(self._handle)
        await RayLauncher(self._namespace).stop_all(0.0)

    async def _stop_workers(self, grace_s: float) -> None:
        """The call hangs if Ray dies under it, so Ray is asked for a sign of life meanwhile."""
        asked = asyncio.ensure_future(_answer(self._handle.stop.remote(grace_s)))
        try:
            async with asyncio.timeout(grace_s + 2 * KILL_TIMEOUT_S):
                while not (await asyncio.wait({asked}, timeout=ALIVE_EVERY_S))[0]:
                    await RayLauncher(self._namespace).running()
                await asked
        finally:
            asked.cancel()


async def _find_actor(name: str, namespace: str) -> Any | None:
    """None: Ray holds no living actor of that name."""
    try:
        return await _within(asyncio.to_thread(ray.get_actor, name, namespace))
    except ValueError:
        return None


async def _kill(handle: Any) -> None:
    await _within(asyncio.to_thread(ray.kill, handle, no_restart=True))


async def _answer(reference: Any) -> Any:
    return await reference


async def _within(answer: Any, seconds: float = CALL_TIMEOUT_S) -> Any:
    """Wait for Ray, in words of ours: raises Unavailable when it is late or out of reach."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise Unavailable(f"Ray did not answer within {seconds:.0f} s") from None
    except (ray.exceptions.RaySystemError, ray.exceptions.RpcError) as error:
        raise Unavailable(f"Ray can not be reached: {error}") from error


def _missing(needs: Mapping[str, float], patient: bool) -> str:
    """What a pending actor waits for. `patient`: it may just be taking what is free."""
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return shortage(needs, total, needs if patient else free)


async def _ending_of(handle: Any) -> str:
    """How a dead actor ended, if Ray still tells."""
    if handle is not None:
        try:
            await _within(handle.pid.remote(), 1.0)
        except ENDINGS as error:
            return obituary(error)
        except Unavailable:
            pass
    return "its process is gone"
