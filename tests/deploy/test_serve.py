"""`segue serve` as a user starts, uses, hurts and stops it, on a Ray cluster of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

CONFIG = """
pools:
  prefill: {role: prefill, replica: {num_cpus: 0.5}, engine: &engine {kv_cache_bytes: 67108864}}
  decode: {role: decode, replica: {num_cpus: 0.5}, engine: *engine}
"""
QUESTION = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


class Server:
    """A running `segue serve` and what it has said so far."""

    def __init__(self, folder: Path, **environment: str) -> None:
        config = folder / "segue.yaml"
        config.write_text(CONFIG)
        self._said = folder / "said.txt"
        code = "from segue.deploy.launch import main; main()"
        with self._said.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, "serve", str(config), "--port", "0"],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | environment,
            )

    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, pattern: str, seconds: float) -> re.Match[str]:
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.said())) is None:
            assert self.process.poll() is None, f"it ended:\n{self.said()}"
            assert time.monotonic() < end, f"no '{pattern}' within {seconds} s:\n{self.said()}"
            time.sleep(0.1)
        return found


@pytest.fixture
def server(tmp_path: Path, bundled_model: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait(10)


def test_serve_answers_heals_and_stops(server: Server) -> None:
    url = server.wait_for(r"serving (http://\S+)", 60).group(1)
    early = httpx.get(f"{url}/ready", timeout=10)
    if early.status_code != 200:
        assert early.status_code == 503 and "no " in early.json()["reason"]
    server.wait_for(r"ready: http", 90)
    assert ask(url) == " Paris"
    ours = {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}

    leaver = int(server.wait_for(r"prefill-0 ready \(pid (\d+)\)", 1).group(1))
    os.kill(leaver, signal.SIGTERM)
    server.wait_for(r"prefill-0 dead: drained \(SIGTERM\)", 20)
    victim = int(server.wait_for(r"decode-0 ready \(pid (\d+)\)", 1).group(1))
    os.kill(victim, signal.SIGKILL)
    server.wait_for(r"decode-0 dead: its process died unexpectedly", 5)
    server.wait_for(r"decode-0 dead(.|\n)*decode-0 ready", 60)
    server.wait_for(r"decode-0 dead(.|\n)*ready: http", 60)  # by then, or as soon as any pool is
    assert ask(url) == " Paris"
    metrics = httpx.get(f"{url}/metrics", timeout=10).text
    assert re.search(r'segue_pool_ready_replicas\{.*pool="decode".*\} 1', metrics)

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert "SIGTERM: finishing what is under way" in server.said()
    assert "Traceback" not in server.said() and "(raylet)" not in server.said()
    assert_gone(ours | {leaver, victim}, 30)


def ask(url: str) -> str:
    answer = httpx.post(f"{url}/v1/completions", json={"model": "smollm2-135m"} | QUESTION)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text[: len(" Paris")]


def assert_gone(pids: set[int], seconds: float) -> None:
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.2)


def test_a_second_signal_does_not_wait_for_anybody(server: Server) -> None:
    url = server.wait_for(r"serving (http://\S+)", 60).group(1)
    server.wait_for(r"ready: http", 90)
    ours = {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}
    for name in ("prefill-0", "decode-0"):  # neither will answer, finish or leave by itself
        os.kill(int(server.wait_for(rf"{name} ready \(pid (\d+)\)", 1).group(1)), signal.SIGSTOP)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(httpx.post, f"{url}/v1/completions", json=QUESTION, timeout=60)
        time.sleep(0.5)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert server.process.wait(30) == 0
        assert answer.result(30).status_code == 503
    assert "Traceback" not in server.said()
    assert_gone(ours, 90)  # Ray's agents look for their raylet once in a while


def test_a_signal_to_all_processes_at_once_ends_them_too(server: Server) -> None:
    """As systemd does it: Ray is gone before it could be asked to end anything."""
    server.wait_for(r"ready: http", 90)
    ours = {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}
    os.killpg(server.process.pid, signal.SIGTERM)
    server.process.wait(60)
    assert "Traceback" not in server.said()
    assert_gone(ours, 90)


def test_a_worker_that_can_never_start_ends_it_with_one_line(
    tmp_path: Path, bundled_model: Path
) -> None:
    """NIXL is installed, but does not load: only a worker finds out."""
    for package in ("nixl", "nixl_cu12"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "_api.py").write_text("raise ImportError('libucp.so.0 is missing')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = Server(tmp_path, PYTHONPATH=path)
    try:
        assert server.process.wait(90) == 2
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(10)
    last = server.said().splitlines()[-1]
    assert re.fullmatch(
        r"segue: (prefill|decode)-0 can not start: .*libucp\.so\.0 is missing.*"
        r"pip install 'segue\[nixl\]'",
        last,
    )
    assert "Traceback" not in server.said()
