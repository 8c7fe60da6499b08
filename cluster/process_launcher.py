"""Starts workers as plain subprocesses of this one: no Ray, one machine."""

import asyncio
import logging
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO

from segue.cluster.errors import Unavailable
from segue.cluster.identity import WorkerIdentity
from segue.cluster.launcher import LaunchState, Probe, WorkerSpec
from segue.cluster.worker_entry import CONFIGURATION_EXIT

logger = logging.getLogger(__name__)

KILL_WAIT_S = 5.0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[str]
    stderr: IO[bytes]

    @property
    def is_final(self) -> bool:
        return self.process.returncode == CONFIGURATION_EXIT

    def ending(self) -> str:
        """How it ended, in one line."""
        code = self.process.returncode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").strip().splitlines()
        if self.is_final and lines:
            return lines[-1]
        return f"exited with code {code}" + (f": {lines[-1]}" if lines else "")


class ProcessLauncher:
    """A Launcher. Its workers end with it, since their standard input does."""

    def __init__(self) -> None:
        self._children: dict[WorkerIdentity, _Child] = {}

    async def start(self, spec: WorkerSpec) -> None:
        if spec.identity in self._children:
            return
        stderr = tempfile.TemporaryFile()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "segue.cluster.worker_entry", spec.entry],
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                text=True,
            )
        except OSError as error:
            stderr.close()
            raise Unavailable(f"no process for {spec.identity}: {error}") from error
        self._children[spec.identity] = _Child(process, stderr)
        if process.stdin is not None:
            process.stdin.write(spec.settings + "\n")
            process.stdin.flush()

    async def probe(self, identity: WorkerIdentity) -> Probe:
        child = self._children.get(identity)
        if child is None:
            return Probe(LaunchState.GONE, "never started here")
        if child.process.poll() is None:
            return Probe(LaunchState.RUNNING)
        return Probe(LaunchState.GONE, child.ending(), child.is_final)

    async def kill(self, identity: WorkerIdentity) -> bool:
        child = self._children.get(identity)
        if child is None:
            return True
        child.process.kill()
        return await self._reap(identity, KILL_WAIT_S)

    async def running(self) -> tuple[WorkerIdentity, ...]:
        return tuple(i for i, child in self._children.items() if child.process.poll() is None)

    async def stop_all(self, grace_s: float) -> None:
        for child in self._children.values():
            _close_input(child)
        for identity in list(self._children):
            if not await self._reap(identity, grace_s):
                await self.kill(identity)

    async def _reap(self, identity: WorkerIdentity, seconds: float) -> bool:
        child = self._children[identity]
        try:
            await asyncio.to_thread(child.process.wait, seconds)
        except subprocess.TimeoutExpired:
            return False
        _close_input(child)
        if child.process.returncode > 0:
            logger.warning("%s %s", identity, child.ending())
        child.stderr.close()
        del self._children[identity]
        return True


def _close_input(child: _Child) -> None:
    if child.process.stdin is not None:
        try:
            child.process.stdin.close()
        except BrokenPipeError:
            return  # what was still to be flushed has no reader any more
