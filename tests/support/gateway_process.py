"""A gateway in a process of its own: the real HTTP application over a fleet without Ray."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from segue.cluster.identity import new_incarnation
from segue.cluster.launcher import ControllerSettings, StaticLocator
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.deploy.serve import build_generator, configure_logging
from segue.deploy.served_model import find_model
from segue.router.evacuation import Evacuation
from segue.router.fleet import Front, readiness, status_report
from segue.router.fleet_metrics import FleetMetrics
from segue.router.gateway import create_app
from segue.router.links import WorkerLinks
from segue.router.listener import open_listener
from segue.router.migration import Migrations
from segue.router.operations import Operations
from segue.router.rebinding import Rebinding
from segue.router.server import GatewayServer


def end_with_input() -> None:
    """So that it never outlives whoever started it."""
    sys.stdin.read()
    os._exit(0)


async def serve(folder: Path, port: int) -> None:
    settings = ControllerSettings.model_validate_json((folder / "controller.settings").read_text())
    token = settings.cluster_token
    model = find_model(settings.config)
    watcher = FleetWatcher(StaticLocator(settings.locator.address), token)
    links = WorkerLinks(f"gateway-{new_incarnation()}", token)
    journeys = build_generator(settings.config, watcher, links)
    front = Front(links.usable, journeys.usable, settings.config.gateway.recovery.ladder)
    longest_move_s = settings.config.transfer.longest_move_s
    migrations = Migrations(journeys, links, lambda: watcher.view, longest_move_s)
    evacuation = Evacuation(watcher, journeys, migrations)
    rebinding = Rebinding(watcher, journeys, links, settings.config.gateway.recovery.rebind_wait_s)
    metrics = FleetMetrics(model.card.id, links, journeys.counters)

    async def status() -> dict[str, object]:
        view = await metrics.refreshed(watcher.view)
        return status_report(view, watcher.age_seconds, watcher.trouble, front)

    app = create_app(
        generator=journeys,
        card=model.card,
        model_folder=model.folder,
        config=settings.config.gateway,
        readiness=lambda: readiness(watcher.view, watcher.age_seconds, watcher.trouble, front),
        metrics_text=lambda: metrics.text(watcher.view),
        status=status,
        operations=Operations(journeys, migrations, links, lambda: watcher.view),
    )
    server = GatewayServer(app)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    following = asyncio.create_task(watcher.run())
    with open_listener("127.0.0.1", port) as listener:
        await server.serve(sockets=[listener])
    await evacuation.close()
    await rebinding.close()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await links.close()


def main() -> None:
    """Arguments: the folder of the fleet, the port."""
    configure_logging()
    threading.Thread(target=end_with_input, daemon=True).start()
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
