"""A real `segue serve` in a process of its own, with its own Ray cluster."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

START_SECONDS = 150.0
_SERVING = re.compile(r"serving (http://\S+)")


@dataclass(slots=True)
class Deployment:
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    url: str = ""
    follower: threading.Thread | None = None

    def wait_ready(self, timeout_s: float = START_SECONDS) -> None:
        end = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, f"segue serve ended:\n{self.text()}"
            assert time.monotonic() < end, f"not ready:\n{self.text()}"
            if self.url:
                try:
                    ready = httpx.get(f"{self.url}/ready", timeout=2).status_code == 200
                    if ready and all(p["ready"] == p["desired"] for p in self.status()["pools"]):
                        return
                except httpx.TransportError:
                    pass
            time.sleep(0.2)

    def text(self) -> str:
        return "".join(self.log)

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = httpx.get(f"{self.url}/debug/status", timeout=10).json()
        return body

    def workers(self) -> dict[str, dict[str, Any]]:
        """Living workers by role (one of each)."""
        return {w["role"]: w for w in self.status()["workers"] if w["state"] != "dead"}

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by name and labels as they are printed."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def kill(self, role: str, signum: int = signal.SIGKILL) -> int:
        pid = int(self.workers()[role]["pid"])
        os.kill(pid, signum)
        return pid

    def settled(self, timeout_s: float = 45.0) -> dict[str, dict[str, Any]]:
        """Wait until no worker holds anything; returns them by role."""
        end = time.monotonic() + timeout_s
        while True:
            workers = self.workers()
            held = {role: leftovers(worker) for role, worker in workers.items()}
            if not any(held.values()):
                return workers
            assert time.monotonic() < end, f"still held: {held}"
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        if self.follower is not None:
            self.follower.join(10)


def leftovers(worker: dict[str, Any]) -> dict[str, float]:
    """Whatever an idle worker must not hold."""
    gauges, counters = worker["gauges"], worker["counters"]
    names = (
        "kv_blocks_owned",
        "kv_blocks_leased",
        "kv_blocks_landing",
        "kv_blocks_promised",
        "leases",
        "reads_in_flight",
        "running_requests",
        "landing_requests",
        "waiting_requests",
    )
    found = {name: gauges.get(name, -1.0) for name in names if gauges.get(name, -1.0)}
    ended = sum(n for name, n in counters.items() if name.startswith("attempts_ended_"))
    if ended != counters.get("attempts_received"):
        found["attempts_open"] = counters.get("attempts_received", -1.0) - ended
    if (
        gauges
        and gauges["kv_blocks_free"] + gauges["kv_blocks_cached"] != gauges["kv_blocks_total"]
    ):
        found["kv_blocks_lost"] = gauges["kv_blocks_total"]
    return found


def start_deployment(folder: Path, config: dict[str, Any]) -> Deployment:
    """Start; call `wait_ready` before use. Several may start at once."""
    path = folder / "segue.yaml"
    path.write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "segue.deploy.launch", "serve", str(path), "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deployment = Deployment(process)

    def follow() -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                deployment.log.append(line)
                if not deployment.url and (found := _SERVING.search(line)):
                    deployment.url = found.group(1)

    deployment.follower = threading.Thread(target=follow, daemon=True)
    deployment.follower.start()
    return deployment
