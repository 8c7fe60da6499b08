"""`segue serve` whose workers can be told to misbehave, and a fleet that is made of it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from fault_fleet import WORKERS, FaultFleet, last_words
from fault_plan import FOLDER_VARIABLE, PlanFile
from network import Network
from nursery import SUPPORT, WORKER_ENTRY

from segue.cluster.launcher import ControllerSettings
from segue.deploy.serve import (
    Deployment,
    ServeOptions,
    configure_logging,
    effective_config,
    ray_cluster,
)
from segue.deploy.served_model import find_model
from segue.router.listener import open_listener

STOP_SECONDS = 40.0


class FaultyDeployment(Deployment):
    def _controller_settings(self) -> ControllerSettings:
        settings = super()._controller_settings()
        return settings.model_copy(update={"worker_entry": WORKER_ENTRY})


def main(config_file: Path, port: int) -> None:
    configure_logging()
    options = ServeOptions(config_file=config_file, host="127.0.0.1", port=port)
    config = effective_config(options)
    with open_listener("127.0.0.1", port) as listener:
        model = find_model(config)
        with ray_cluster(options, config):
            FaultyDeployment(model, options).run(listener)


def _controller_pid(server: int) -> int | None:
    """Ray's own children carry the actor's name in their title."""
    with suppress(psutil.Error):
        for process in psutil.Process(server).children(recursive=True):
            with suppress(psutil.Error):
                title = process.name() + " ".join(process.cmdline())
                if "ray::ControllerActor" in title and process.status() != psutil.STATUS_ZOMBIE:
                    return process.pid
    return None


@asynccontextmanager
async def ray_fleet(config: dict[str, Any], folder: Path) -> AsyncIterator[FaultFleet]:
    """As fault_fleet, with Ray in the nursery's place and no proxies between the processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    path = folder / "segue.yaml"
    path.write_text(yaml.safe_dump(config))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        FOLDER_VARIABLE: str(folder),
    }
    with (folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(path), str(port)],
            stdout=log,
            stderr=log,
            env=environment,
        )
    network = Network(dict)
    client = httpx.AsyncClient(timeout=10, verify=False)
    processes: dict[str, Callable[[], int | None]] = {
        "gateway": lambda: process.pid,
        "controller": lambda: _controller_pid(process.pid),
    }
    plans = {worker_id: PlanFile(folder, worker_id) for worker_id in WORKERS.values()}
    fleet = FaultFleet(folder, f"http://127.0.0.1:{port}", network, processes, client, plans)
    try:
        try:
            await fleet.ready()
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{last_words(folder)}") from error
        yield fleet
    finally:
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        await client.aclose()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
