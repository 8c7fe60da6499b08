"""Starts workers by forking a process that has everything imported; outlives every controller.

It stands for the machine: what a Launcher asks of Ray, the controller's NurseryLauncher asks here
over a Unix socket. Run as a program with the folder of the faults; it ends with its input.
"""

import asyncio
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segue.cluster.errors import Unavailable
from segue.cluster.identity import WorkerIdentity
from segue.cluster.launcher import LaunchState, Probe, WorkerSpec

ENTRY = "faulty_worker:FaultyWorker"
CALL_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


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
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, _Child] = {}
        self._listener = socket.socket(socket.AF_UNIX)

    def run(self) -> None:
        for module in ("faulty_worker", "segue.cluster.worker_entry"):
            importlib.import_module(module)
        self._listener.bind(str(self._folder / "nursery.sock"))
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

    def _answer(self, question: dict[str, str], connection: socket.socket) -> dict[str, Any]:
        name, child = question.get("name", ""), self._children.get(question.get("name", ""))
        match question["verb"]:
            case "start" if child is None:
                self._children[name] = self._fork(name, question["settings"], connection)
            case "kill" if child is not None and not child.poll():
                os.kill(child.pid, signal.SIGKILL)
                _, child.status = os.waitpid(child.pid, 0)
                child.close_input()
            case "close" if child is not None:
                child.close_input()
            case _:
                pass
        running = [key for key, each in self._children.items() if not each.poll()]
        child = self._children.get(name)
        ending = child.ending if child is not None and child.status is not None else ""
        return {"running": running, "ending": ending}

    def _fork(self, name: str, settings: str, connection: socket.socket) -> _Child:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid:
            os.close(read_end)
            os.write(write_end, settings.encode() + b"\n")
            return _Child(pid, write_end)
        code = 1
        try:
            self._listener.close()
            os.close(connection.fileno())
            os.close(write_end)
            for child in self._children.values():
                child.close_input()
            _become_worker(self._folder / f"{name}.log", read_end)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _become_worker(log: Path, settings: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(settings, 0)
    os.close(settings)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    sys.stdin = os.fdopen(0)
    sys.argv = ["worker_entry", ENTRY]
    from segue.cluster.worker_entry import main

    main()


class NurseryLauncher:
    """A Launcher whose workers outlive the controller that asked for them."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "nursery.sock")

    async def start(self, spec: WorkerSpec) -> None:
        await self._ask("start", spec.identity, settings=spec.settings)

    async def probe(self, identity: WorkerIdentity) -> Probe:
        answer = await self._ask("probe", identity)
        if _name(identity) in answer["running"]:
            return Probe(LaunchState.RUNNING)
        return Probe(LaunchState.GONE, answer["ending"] or "never started here")

    async def kill(self, identity: WorkerIdentity) -> bool:
        return _name(identity) not in (await self._ask("kill", identity))["running"]

    async def running(self) -> tuple[WorkerIdentity, ...]:
        names = (await self._ask("list"))["running"]
        return tuple(WorkerIdentity(*name.split("@")) for name in names)

    async def stop_all(self, grace_s: float) -> None:
        for identity in await self.running():
            await self._ask("close", identity)
        end = asyncio.get_running_loop().time() + grace_s
        while await self.running() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.1)
        for identity in await self.running():
            await self.kill(identity)

    async def _ask(
        self, verb: str, identity: WorkerIdentity | None = None, **more: str
    ) -> dict[str, Any]:
        name = {} if identity is None else {"name": _name(identity)}
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                writer.write(json.dumps({"verb": verb, **name, **more}).encode() + b"\n")
                answer: dict[str, Any] = json.loads(await reader.readline())
                writer.close()
                return answer
        except (OSError, TimeoutError, ValueError) as error:
            raise Unavailable(f"the nursery does not answer: {error}") from error


def _name(identity: WorkerIdentity) -> str:
    return f"{identity.worker_id}@{identity.incarnation}"


if __name__ == "__main__":
    Nursery(Path(sys.argv[1])).run()
    os._exit(0)  # the kernel ends the children: see PR_SET_PDEATHSIG
