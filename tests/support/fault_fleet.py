"""A whole deployment but for Ray, each part a process of its own, with faults between and in them.

client (the test)
   |
gateway ---- proxy ---- controller        workers are forked by a nursery, which
   |                    |                 outlives the controller as Ray would;
 proxies ----------- proxies              controller and gateway are started again
   |                    |                 when they die
prefill-0 --- NIXL --- decode-0
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from answer_stream import AnswerStream, ask
from deployment import leftovers
from fault_matrix import Component
from fault_plan import PlanFile, last_sighting
from network import Network
from nursery import Errand, NurseryClient, NurseryLauncher

from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import Unavailable
from segue.cluster.launcher import ControllerSettings, LocatorConfig

TOKEN = "cluster-token-of-tests"
START_SECONDS = 120.0
POLL_SECONDS = 0.05
SPARE_SOCKETS = 2
WORKERS = {"prefill": "prefill-0", "decode": "decode-0"}
PLACES = (*WORKERS.values(), "gateway", "controller")


@dataclass(slots=True)
class _Program:
    """A process that is started again when it ends, as Ray or systemd would."""

    nursery: NurseryClient
    errand: Errand
    pid: int | None = None
    keeper: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        errand = self.errand
        while True:
            try:
                self.pid = (await self.nursery.running()).get(errand.name)
                if self.pid is None:
                    await self.nursery.start(errand)
                    errand = replace(self.errand, arguments=[*self.errand.arguments, "restarted"])
            except Unavailable:
                continue  # a busy machine: ask again
            await asyncio.sleep(2 * POLL_SECONDS)

    async def stop(self) -> None:
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
        await self.nursery.kill(self.errand.name)


@dataclass(slots=True)
class FaultFleet:
    folder: Path
    url: str
    network: Network
    processes: dict[str, Callable[[], int | None]]  # those that are no workers
    client: httpx.AsyncClient
    plans: dict[str, PlanFile] = field(default_factory=dict)
    first_sockets: dict[int, int] = field(default_factory=dict)  # by pid

    def place(self, component: Component) -> str:
        return WORKERS.get(component, "controller" if component is Component.RAY else component)

    def pid(self, place: str) -> int | None:
        if (find := self.processes.get(place)) is not None:
            return find()
        seen = last_sighting(self.folder, place)
        return None if seen is None else seen.pid

    def pids(self) -> dict[str, int]:
        found = {place: self.pid(place) for place in PLACES}
        return {place: pid for place, pid in found.items() if pid is not None}

    def ask(self, prompt: Sequence[int], num_tokens: int) -> AnswerStream:
        return ask(self.url, prompt, num_tokens)

    async def status(self) -> dict[str, Any]:
        response = await self.client.get(f"{self.url}/debug/status")
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}: {response.text}")
        body: dict[str, Any] = response.json()
        return body

    async def workers(self) -> dict[str, dict[str, Any]]:
        """What is ready, by worker id; `sources` are the incarnations that it may read from."""
        status = await self.status()
        ready = {worker["id"]: worker for worker in status["workers"] if worker["state"] == "ready"}
        for worker in ready.values():
            worker["sources"] = [
                pair["source_incarnation"]
                for pair in status["pairs"]
                if pair["reader_incarnation"] == worker["incarnation"] and not pair["refusal"]
            ]
        return ready

    async def until(
        self, what: str, condition: Callable[[dict[str, dict[str, Any]]], bool], timeout_s: float
    ) -> dict[str, dict[str, Any]]:
        """Until the ready workers are as wanted; returns them. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        while True:
            with suppress(httpx.HTTPError):
                workers = await self.workers()
                with suppress(KeyError):  # a worker that is just coming back says nothing yet
                    if condition(workers):
                        return workers
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
            await asyncio.sleep(POLL_SECONDS)

    async def ready(self, timeout_s: float = START_SECONDS) -> dict[str, dict[str, Any]]:
        """Both workers serve, under the processes that run now, and everybody is connected."""

        def serving(workers: dict[str, dict[str, Any]]) -> bool:
            prefill, decode = (workers[worker_id] for worker_id in WORKERS.values())
            return (
                prefill["incarnation"] in decode["sources"]
                and all(worker["pid"] == self.pid(worker["id"]) for worker in (prefill, decode))
                and not any(worker["reason"] for worker in (prefill, decode))
                and all(worker["gauges"] for worker in (prefill, decode))
            )

        workers = await self.until("both workers are ready", serving, timeout_s)
        async with asyncio.timeout(timeout_s):
            while not await self._is_open():
                await asyncio.sleep(POLL_SECONDS)
        return workers

    async def _is_open(self) -> bool:
        """A gateway that is about to end still knows of everybody, but takes nothing new."""
        try:
            trouble = (await self.status())["controller"]["trouble"]
            ready = await self.client.get(f"{self.url}/ready")
        except httpx.HTTPError:
            return False
        return self.pid("controller") is not None and not trouble and ready.status_code == 200

    async def held(self) -> dict[str, dict[str, float]]:
        """Whatever a worker still holds."""
        workers = await self.workers()
        return {name: found for name in workers if (found := leftovers(workers[name]))}

    def grown(self) -> dict[str, str]:
        """Processes with more sockets than they had when they were first looked at.

        Two more are no leak: two workers that connect to each other at once may keep both
        connections. What is leaked in every cell adds up, since most processes live through many.
        """
        found = {}
        for place, pid in self.pids().items():
            count = num_sockets(pid)
            first = self.first_sockets.setdefault(pid, count)
            if count > first + SPARE_SOCKETS:
                found[f"sockets of {place}"] = f"{count}, at first {first}"
        return found


def num_sockets(pid: int) -> int:
    count = 0
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                count += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return count


def last_words(folder: Path) -> str:
    """The ends of all logs."""
    ends = {path.name: path.read_text()[-1000:] for path in sorted(folder.glob("*.log"))}
    return "\n".join(f"-- {name}\n{end}" for name, end in ends.items())


def token_ids(seed: int, count: int) -> list[int]:
    """Text that no tokenizer would merge or stop at."""
    source = random.Random(seed)
    return [source.randrange(20, 49_000) for _ in range(count)]


@asynccontextmanager
async def fault_fleet(
    nursery: NurseryClient, config: SegueConfig, model_folder: Path, folder: Path
) -> AsyncIterator[FaultFleet]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    arguments = {"controller": str(nursery.path), "gateway": str(port)}
    programs = {
        name: _Program(
            nursery,
            Errand(f"{folder}/{name}", str(folder), f"{name}_process", [str(folder), argument]),
        )
        for name, argument in arguments.items()
    }
    network = Network(lambda: fleet.pids())
    client = httpx.AsyncClient(timeout=10, verify=False)
    processes = {name: _pid_of(program) for name, program in programs.items()}
    fleet = FaultFleet(folder, f"http://127.0.0.1:{port}", network, processes, client)
    try:
        await _advertise(fleet, config, model_folder)
        for each in programs.values():
            each.keeper = asyncio.create_task(each.keep())
        try:
            await fleet.ready()
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{last_words(folder)}") from error
        yield fleet
    finally:
        for each in programs.values():
            await each.stop()
        await NurseryLauncher(nursery, folder).stop_all(0.0)
        await network.close()
        await client.aclose()


def _pid_of(program: _Program) -> Callable[[], int | None]:
    return lambda: program.pid


async def _advertise(fleet: FaultFleet, config: SegueConfig, model_folder: Path) -> None:
    folder = fleet.folder

    def controller() -> str | None:
        path = folder / "controller.address"
        return path.read_text() if path.exists() else None

    def worker(worker_id: str) -> str | None:
        seen = last_sighting(folder, worker_id)
        return None if seen is None else seen.address

    address = await fleet.network.listen("controller", controller)
    settings = ControllerSettings(
        config=config,
        model_folder=str(model_folder),
        cluster_token=TOKEN,
        locator=LocatorConfig(kind="static", address=address),
        host="127.0.0.1",
    )
    (folder / "controller.settings").write_text(settings.model_dump_json())
    for worker_id in WORKERS.values():
        advertised = await fleet.network.listen(worker_id, lambda w=worker_id: worker(w))  # type: ignore[misc]
        (folder / f"{worker_id}.advertised").write_text(advertised)
        fleet.plans[worker_id] = PlanFile(folder, worker_id)
