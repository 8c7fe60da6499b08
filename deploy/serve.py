"""Composition root of `segue serve`: model, Ray, controller, fleet view, journeys, gateway."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segue.cluster.config.environment import cache_folder, prepare_ray
from segue.cluster.config.file import load_config, parse_config
from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError, Unavailable
from segue.cluster.identity import new_incarnation
from segue.cluster.launcher import ControllerSettings, LocatorConfig, open_locator
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.cluster.rpc.security import Security, load_security
from segue.deploy.config_warnings import config_warnings
from segue.deploy.first_start import FirstStart
from segue.deploy.fleet_log import FleetLog
from segue.deploy.preconditions import check_machine, check_replicas, check_text
from segue.deploy.running_servers import announced
from segue.deploy.served_model import ServedModel, find_model
from segue.router.api_keys import load_keys
from segue.router.evacuation import Evacuation
from segue.router.fleet import Front, readiness, status_report
from segue.router.fleet_metrics import FleetMetrics
from segue.router.gateway import create_app
from segue.router.generation import Readiness
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.router.listener import open_listener
from segue.router.migration import Migrations
from segue.router.operations import Operations
from segue.router.rebinding import Rebinding
from segue.router.server import GatewayServer
from segue.router.tracing import Tracing

if TYPE_CHECKING:
    from segue.cluster.ray_launcher import RayController

logger = logging.getLogger("segue")

LOOPBACK = "127.0.0.1"
STOP_WORKERS_SECONDS = 10.0
LEAVE_SECONDS = 10.0  # for what is left when all is said and done


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command line; None leaves what the configuration file says."""

    config_file: Path | None = None
    address: str | None = None  # of a Ray cluster to join
    host: str | None = None
    port: int | None = None
    namespace: str = "segue"
    generation_config: str | None = None


def run_server(options: ServeOptions) -> None:
    """Serve until told to stop. Raises ConfigurationError if that can not be done."""
    configure_logging()
    config = effective_config(options)
    check_replicas(config)
    with open_listener(config.gateway.host, config.gateway.port) as listener:  # before Ray starts
        load_keys(config.gateway)  # a wrong file is told before Ray starts
        cluster_security(config, joins=options.address is not None)
        model = find_model(config)
        check_text(model.folder, model.card)
        if options.address is None:  # else the workers run on machines that only they know
            check_machine(config)
        for warning in config_warnings(config):
            logger.warning("%s", warning)
        with announced(local_url(listener), cache_folder()), ray_cluster(options, config):
            Deployment(model, options).run(listener)


def configure_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger.setLevel(logging.INFO)
    # At WARNING it has a line for every malformed request, which anybody could send at will.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def effective_config(options: ServeOptions) -> SegueConfig:
    """The file, with what the command line says put in its place."""
    config = load_config(options.config_file)
    data = config.model_dump()
    for name, value in (("host", options.host), ("port", options.port)):
        if value is not None:
            data["gateway"][name] = value
    if options.generation_config is not None:
        data["model"]["generation_config"] = options.generation_config
    for name, file in (data["control"]["tls"] or {}).items():
        if name.endswith("_file"):  # Ray starts workers in other folders
            data["control"]["tls"][name] = str(Path(file).absolute())
    if config.transfer.transport == "loopback":
        raise ConfigurationError("transfer.transport: loopback works within one process only")
    return parse_config(data, "command line")


def cluster_security(config: SegueConfig, *, joins: bool) -> Security:
    """Raises ConfigurationError if a Ray cluster is joined whose nodes others could listen to."""
    security = load_security(config.control)
    if joins:
        security.check_host("the nodes of a Ray cluster")
    return security


@contextmanager
def ray_cluster(options: ServeOptions, config: SegueConfig) -> Iterator[None]:
    """A Ray cluster of our own that ends with us, or a part in a running one.

    Entered in the main thread, which must outlive the cluster. Ray is imported in here, because
    what it reads from the environment must be set before.
    """
    prepare_ray(own_cluster=options.address is None)
    from segue.cluster.ray_launcher import join_ray, leave_ray, start_ray

    began = time.monotonic()
    if options.address is None:
        logger.info("starting Ray")
        start_ray(config.pools, options.namespace)
    else:
        logger.info("joining Ray at %s", options.address)
        join_ray(options.address, options.namespace)
    logger.info("Ray ready (%.1f s)", time.monotonic() - began)
    try:
        yield
    finally:
        leave_ray()
        logger.info("stopped")


def listening_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def local_url(listener: socket.socket) -> str:
    """How commands on this machine reach it, also if it listens on all addresses."""
    name = listener.getsockname()
    host, port = str(name[0]), int(name[1])
    return listening_url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def build_generator(config: SegueConfig, watcher: FleetWatcher, links: WorkerLinks) -> Journeys:
    """The one place that says who runs requests: journeys over the fleet."""
    admission = config.gateway.admission
    return Journeys(
        watcher,
        links,
        config.gateway.recovery,
        admission.request_timeout_s,
        retry_after_s=admission.retry_after_s,
    )


def end_for_sure(seconds: float) -> None:
    """End the process by then, even if threads wait for a Ray that is gone.

    It is when somebody tells all processes of the service to end at once, as systemd does.
    """
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


class Deployment:
    """One `segue serve`: what runs in its event loop, and how it ends."""

    def __init__(self, model: ServedModel, options: ServeOptions) -> None:
        self._model = model
        self._config = model.config
        self._namespace = options.namespace
        self._local = options.address is None
        self._token = secrets.token_hex(32)
        self._locator = LocatorConfig(kind="ray", namespace=options.namespace)
        security = cluster_security(self._config, joins=not self._local)
        self._watcher = FleetWatcher(open_locator(self._locator), self._token, security)
        self._links = WorkerLinks(f"gateway-{new_incarnation()}", self._token, security)
        self._front = Front(self._links.usable)
        self._first_start = FirstStart()
        self._stop_asked = False
        self._at_once = asyncio.Event()

    def run(self, listener: socket.socket) -> None:
        asyncio.run(self._run(listener))

    async def _run(self, listener: socket.socket) -> None:
        from segue.cluster.ray_launcher import RayController

        server = self._gateway(listener)
        self._obey_signals(server)
        controller = RayController(self._namespace)
        await controller.start(self._controller_settings())
        following = asyncio.create_task(self._watcher.run(), name="fleet view")
        failing = asyncio.create_task(self._first_start.failure(), name="first start")
        try:
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="gateway")
            ends = [serving, following, failing]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if serving not in done:
                server.stop()
            await serving
            if following in done:  # nobody would notice the fleet change any more
                following.result()
            if failing in done:
                raise ConfigurationError(failing.result())
        finally:
            following.cancel()
            failing.cancel()
            await asyncio.gather(following, failing, return_exceptions=True)
            await self._links.close()
            try:
                await self._end_workers(controller)
            except Unavailable as error:
                logger.warning("leaving without Ray, which ends its workers: %s", error.message)
            end_for_sure(LEAVE_SECONDS)

    async def _end_workers(self, controller: "RayController") -> None:
        """They get time to finish what they are in the middle of, unless asked twice."""
        logger.info("stopping workers")
        stopping = asyncio.create_task(controller.stop(STOP_WORKERS_SECONDS))
        hurry = asyncio.create_task(self._at_once.wait())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if self._at_once.is_set() and not stopping.done():
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            await controller.kill()
        else:
            await stopping

    def _gateway(self, listener: socket.socket) -> GatewayServer:
        links = self._links
        url = listening_url(*listener.getsockname()[:2])
        card = self._model.card
        journeys = build_generator(self._config, self._watcher, links)
        ladder = self._config.gateway.recovery.ladder
        self._front = Front(links.usable, journeys.usable, ladder)
        metrics = FleetMetrics(card.id, links, journeys.counters)
        longest_move_s = self._config.transfer.longest_move_s
        migrations = Migrations(journeys, links, lambda: self._watcher.view, longest_move_s)
        Evacuation(self._watcher, journeys, migrations)
        wait_s = self._config.gateway.recovery.rebind_wait_s
        Rebinding(self._watcher, journeys, links, wait_s)
        app = create_app(
            generator=journeys,
            card=card,
            model_folder=self._model.folder,
            config=self._config.gateway,
            readiness=self._readiness,
            metrics_text=lambda: metrics.text(self._watcher.view),
            status=lambda: self._status(metrics),
            trace=Tracing(lambda: self._watcher.view, links).steps,
            operations=Operations(journeys, migrations, links, lambda: self._watcher.view),
        )
        self._watcher.on_change(self._first_start.observe)
        self._watcher.on_change(FleetLog(self._readiness, f"{url}/v1 as {card.id}").observe)
        logger.info("serving %s", url)
        return GatewayServer(app, self._config.gateway.drain_timeout_s)

    def _controller_settings(self) -> ControllerSettings:
        return ControllerSettings(
            config=self._config,
            model_folder=str(self._model.folder),
            cluster_token=self._token,
            locator=self._locator,
            host=LOOPBACK if self._local else "",
        )

    def _obey_signals(self, server: GatewayServer) -> None:
        def stop(name: str) -> None:
            if not self._stop_asked:
                self._stop_asked = True
                server.stop()
                logger.info("%s: finishing what is under way; again: at once", name)
            elif not self._at_once.is_set():
                logger.info("%s: at once", name)
                server.abandon()
                self._at_once.set()

        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, stop, signum.name)

    def _readiness(self) -> Readiness:
        watcher = self._watcher
        return readiness(watcher.view, watcher.age_seconds, watcher.trouble, self._front)

    async def _status(self, metrics: FleetMetrics) -> dict[str, object]:
        view = await metrics.refreshed(self._watcher.view)
        watcher = self._watcher
        return status_report(view, watcher.age_seconds, watcher.trouble, self._front)
