"""A peer whose process is stopped keeps its connections open; keepalive ends them all the same."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segue.cluster.errors import Unavailable
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc.worker_client import WorkerClient

TOKEN = "cluster-token-of-tests"
SUPPORT = Path(__file__).resolve().parents[2] / "support"
SERVER = """
import asyncio
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.cluster.rpc.server import start_server
from segue.cluster.rpc.worker_service import add_worker_service
from scripted_worker import ScriptedWorker

async def main():
    worker = ScriptedWorker(WorkerIdentity("w", "1"), "both")
    server = await start_server(
        token="cluster-token-of-tests",
        host="127.0.0.1",
        register=lambda server: add_worker_service(server, worker),
    )
    print(server.address, flush=True)
    for number in range(1200):  # a minute at most
        if BUSY:
            worker.say(AttemptId("r", 1), number, 1)
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


@pytest.mark.parametrize("busy", [False, True], ids=["silent", "busy"])
async def test_a_stopped_peer_is_noticed(busy: bool) -> None:
    path = f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\n"
    server = subprocess.Popen(
        [sys.executable, "-c", path + SERVER.replace("BUSY", str(busy))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    address = (await asyncio.to_thread(server.stdout.readline)).strip()
    client = WorkerClient(Peer(WorkerIdentity("w", "1"), address), TOKEN)
    stopped = False
    try:
        async with asyncio.timeout(25):
            with pytest.raises(Unavailable, match="ping timeout"):
                async for _ in client.frames("gateway"):
                    if not stopped:
                        stopped = True
                        os.kill(server.pid, signal.SIGSTOP)
    finally:
        await client.close()
        server.kill()
        server.wait(10)
        server.stdout.close()
    assert stopped
