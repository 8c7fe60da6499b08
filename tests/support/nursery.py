"""Starts processes by forking one that has everything imported; outlives every controller.

It stands for the machines of a deployment: what a Launcher asks of Ray, a NurseryLauncher asks
here, over a Unix socket. A program of its own, it ends with its input, and its children with it.
"""

import asyncio
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fault_plan import FOLDER_VARIABLE

from segue.cluster.errors import Unavailable
from segue.cluster.identity import WorkerIdentity
from segue.cluster.launcher import LaunchState, Probe, WorkerSpec

SUPPORT = Path(__file__).parent
WORKER_ENTRY = "faulty_worker:FaultyWorker"
PRELOADED = ("faulty_worker", "gateway_process", "controller_process", "segue.cluster.worker_entry")
START_SECONDS = 90.0
CALL_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Errand:
    """What a child does: `main` of a module, with a command line and an input that stays open."""

    name: str
    folder: str  # of its faults and its log
    module: str
    arguments: list[str]
    input: str = ""


@dataclass(slots=True)
class _Child:
    pid: int
    input: int  # the write end of its standard input: it stops when that is closed
    status: int | None = None  # as waitpid gave it

    def poll(self) -> bool:
        """Whether it is gone; reaps it."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                self.close_input()
        return self.status is not None

    def close_input(self) -> None:
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    @property
    def ending(self) -> str:
        code = os.waitstatus_to_exitcode(self.status or 0)
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


class Nursery:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._children: dict[str, _Child] = {}
        self._listener = socket.socket(socket.AF_UNIX)

    def run(self) -> None:
        for module in PRELOADED:
            importlib.import_module(module)
        self._listener.bind(str(self._path))
        self._listener.listen(16)
        while True:
            readable, _, _ = select.select([self._listener, sys.stdin], [], [], 0.2)
            for child in self._children.values():
                child.poll()
            if sys.stdin in readable:  # it ended: so do we, and everybody forked here
                return
            if self._listener in readable:
                connection, _ = self._listener.accept()
                with suppress(OSError, ValueError), connection, connection.makefile("rw") as stream:
                    answer = self._answer(json.loads(stream.readline()), connection)
                    stream.write(json.dumps(answer) + "\n")

    def _answer(self, question: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
        name = question["name"]
        child = self._children.get(name)
        match question["verb"]:
            case "start" if child is None or child.poll():
                self._children[name] = self._fork(Errand(**question["errand"]), connection)
            case "kill" if child is not None and not child.poll():
                os.kill(child.pid, signal.SIGKILL)
                _, child.status = os.waitpid(child.pid, 0)
                child.close_input()
            case "close" if child is not None:
                child.close_input()
            case _:
                pass
        running = {key: each.pid for key, each in self._children.items() if not each.poll()}
        child = self._children.get(name)
        ending = child.ending if child is not None and child.status is not None else ""
        return {"running": running, "ending": ending}

    def _fork(self, errand: Errand, connection: socket.socket) -> _Child:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid:
            os.close(read_end)
            if errand.input:
                os.write(write_end, errand.input.encode() + b"\n")
            return _Child(pid, write_end)
        code = 1
        try:
            os.close(self._listener.fileno())
            os.close(connection.fileno())
            os.close(write_end)
            for child in self._children.values():
                child.close_input()
            _run(errand, read_end)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _run(errand: Errand, settings: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(settings, 0)
    os.close(settings)
    log = str(Path(errand.folder) / f"{errand.name.rpartition('/')[2]}.log")
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    os.environ[FOLDER_VARIABLE] = errand.folder
    sys.stdin = os.fdopen(0)
    sys.argv = [errand.module, *errand.arguments]
    sys.modules[errand.module].main()


class NurseryClient:
    def __init__(self, path: Path) -> None:
        self.path = path

    async def start(self, errand: Errand) -> None:
        await self._ask("start", errand.name, errand=asdict(errand))

    async def kill(self, name: str) -> None:
        await self._ask("kill", name)

    async def close_input(self, name: str) -> None:
        await self._ask("close", name)

    async def running(self) -> dict[str, int]:
        """Pids by name."""
        found: dict[str, int] = (await self._ask("list", ""))["running"]
        return found

    async def ending(self, name: str) -> str | None:
        """How it ended; None while it runs."""
        answer = await self._ask("probe", name)
        return None if name in answer["running"] else answer["ending"] or "never started here"

    async def _ask(self, verb: str, name: str, **more: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self.path)
                try:
                    question = {"verb": verb, "name": name, **more}
                    writer.write(json.dumps(question).encode() + b"\n")
                    answer: dict[str, Any] = json.loads(await reader.readline())
                    return answer
                finally:  # also of a caller that is cancelled
                    writer.close()
        except (OSError, TimeoutError, ValueError) as error:
            raise Unavailable(f"the nursery does not answer: {error}") from error


class NurseryLauncher:
    """A Launcher whose workers outlive the controller that asked for them."""

    def __init__(self, nursery: NurseryClient, folder: Path) -> None:
        self._nursery = nursery
        self._folder = str(folder)

    async def start(self, spec: WorkerSpec) -> None:
        name, arguments = self._name(spec.identity), [WORKER_ENTRY]
        module = "segue.cluster.worker_entry"
        await self._nursery.start(Errand(name, self._folder, module, arguments, spec.settings))

    async def probe(self, identity: WorkerIdentity) -> Probe:
        ending = await self._nursery.ending(self._name(identity))
        return Probe(LaunchState.RUNNING) if ending is None else Probe(LaunchState.GONE, ending)

    async def kill(self, identity: WorkerIdentity) -> bool:
        await self._nursery.kill(self._name(identity))
        return True

    async def running(self) -> tuple[WorkerIdentity, ...]:
        names = [name for name in await self._nursery.running() if "@" in name]
        mine = [name for name in names if name.startswith(f"{self._folder}/")]
        return tuple(WorkerIdentity(*name.rpartition("/")[2].split("@")) for name in mine)

    async def stop_all(self, grace_s: float) -> None:
        for identity in await self.running():
            await self._nursery.close_input(self._name(identity))
        end = asyncio.get_running_loop().time() + grace_s
        while await self.running() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.1)
        for identity in await self.running():
            await self.kill(identity)

    def _name(self, identity: WorkerIdentity) -> str:
        return f"{self._folder}/{identity.worker_id}@{identity.incarnation}"


@asynccontextmanager
async def open_nursery(folder: Path) -> AsyncIterator[NurseryClient]:
    """A short path, please: the socket lies in `folder`."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    path = folder / "nursery.sock"
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, env=environment
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while not path.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the nursery exited with {process.returncode}")
                await asyncio.sleep(0.05)
        yield NurseryClient(path)
    finally:
        process.kill()
        process.wait(10)
        if process.stdin is not None:
            process.stdin.close()


if __name__ == "__main__":
    Nursery(Path(sys.argv[1])).run()
    os._exit(0)  # the kernel ends the children: see PR_SET_PDEATHSIG
