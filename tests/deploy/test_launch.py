"""The `segue` command as its users run it: real processes, real exit codes."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import segue
from segue.cluster.config.whole import SegueConfig
from segue.deploy.serve import ServeOptions, effective_config
from segue.deploy.status_command import SHOWN_PAIRS, duration, render, size

SEGUE = (sys.executable, "-c", "from segue.deploy.launch import main; main()")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    wide = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [*SEGUE, *arguments], capture_output=True, text=True, timeout=60, env=wide
    )


def test_help_and_version_load_neither_ray_nor_torch() -> None:
    code = (
        "import sys\n"
        "from segue.deploy.launch import main\n"
        "sys.argv = ['segue', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'ray', 'torch', 'grpc', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for command in ("serve", "status", "config", "bench"):
        assert command in done.stdout
    assert run("--version").stdout == f"segue {segue.__version__}\n"


def test_wrong_configuration_is_told_in_one_message(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("gatway: {}\n")
    for arguments in ([str(file)], ["--config", str(file)]):
        done = run("serve", *arguments)
        assert done.returncode == 2
        assert "did you mean 'gateway'?" in done.stderr
        assert "Traceback" not in done.stderr
    both = run("serve", str(file), "--config", str(file))
    assert both.returncode == 2 and "not both" in both.stderr


def test_taken_port_is_told_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port))
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr and "in use" in done.stderr
    assert "Ray" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("transfer: {transport: loopback}", "within one process"),
        ("gateway: {api_keys_file: /nowhere}", "api_keys_file"),
        (
            "control: {tls: {ca_file: /nowhere, cert_file: c, key_file: k}}",
            "control.tls.ca_file can not be read",
        ),
        ("model: {path: /nowhere}", "neither a folder nor a file"),
        ("model: {max_model_len: 100000}", "more than the model was made for"),
        (
            "pools: {a: {role: both, engine: {num_kv_blocks: 1}}}\nmodel: {max_model_len: 17}",
            "a.eng",
        ),
        ("pools: {a: {role: both, replica: {num_gpus: 1000}}}", "num_gpus"),
        ("pools: {a: {role: both, num_replicas: 0}}", "nobody would ever serve"),
        ("model: {path: broken_tokenizer}", "tokenizer.json can not be read"),
    ],
)
def test_what_can_not_be_served_is_told_before_anything_is_started(
    tmp_path: Path, bundled_model: Path, written: str, told: str
) -> None:
    file = tmp_path / "segue.yaml"
    broken = tmp_path / "broken_tokenizer"
    broken.mkdir()
    for part in bundled_model.iterdir():
        (broken / part.name).symlink_to(part)
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer.json").write_text("{}")
    file.write_text(written.replace(broken.name, str(broken)))
    done = run("serve", str(file), "--port", "0")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Ray" not in done.stderr and "Traceback" not in done.stderr


def test_a_cluster_of_several_nodes_is_not_joined_in_plain_text_by_default() -> None:
    done = run("serve", "--port", "0", "--address", "127.0.0.1:6379")
    assert done.returncode == 2
    assert "control.tls" in done.stderr and "control.insecure: true" in done.stderr
    assert "joining" not in done.stderr and "Traceback" not in done.stderr


def test_joining_nobody_is_told_at_once(tmp_path: Path, bundled_model: Path) -> None:
    file = tmp_path / "segue.yaml"
    file.write_text("control: {insecure: true}")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = run("serve", str(file), "--port", "0", "--address", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert f"no Ray cluster at 127.0.0.1:{port}" in done.stderr


def test_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "segue.yaml"
    file.write_text("gateway: {host: 0.0.0.0, port: 9}\n")
    config = effective_config(ServeOptions(config_file=file, port=8123))
    assert (config.gateway.host, config.gateway.port) == ("0.0.0.0", 8123)
    assert effective_config(ServeOptions()) == SegueConfig()


REPORT: dict[str, Any] = {
    "ready": False,
    "reason": "no decode worker is ready",
    "controller": {"trouble": "", "view_age_seconds": 0.2},
    "pools": [
        {"name": "decode", "role": "decode", "desired": 2, "ready": 1, "reason": "decode-1 dead"}
    ],
    "workers": [
        {
            "id": "decode-0",
            "incarnation": "0f",
            "pool": "decode",
            "role": "decode",
            "state": "ready",
            "reason": "",
            "state_seconds": 190.4,
            "pid": 4711,
            "restarts": 27,
            "last_end": "wedged: the engine",
            "address": "127.0.0.1:7",
            "transport": "nixl/ucx",
            "gauges": {"running_requests": 3.0, "kv_blocks_free": 17.0, "kv_blocks_total": 64.0},
            "counters": {"kv_bytes_read": 3 * 2**20},
        },
        {
            "id": "decode-1",
            "incarnation": "1f",
            "pool": "decode",
            "role": "decode",
            "state": "dead",
            "reason": "killed by SIGKILL [oom]",
            "state_seconds": 1.0,
            "pid": 0,
            "restarts": 0,
            "last_end": "killed by SIGKILL [oom]",
            "address": None,
            "transport": None,
            "gauges": {},
            "counters": {},
        },
    ],
}


@pytest.fixture
def gateway() -> Iterator[str]:
    """Answers /debug/status with REPORT to whoever has the key."""

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == "Bearer sesame"
            self.send_response(200 if known and self.path == "/debug/status" else 401)
            self.end_headers()
            self.wfile.write(json.dumps(REPORT).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_key_may_come_from_the_environment(
    gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key on a command line is shown by `ps` to every user of the machine."""
    assert run("status", "--url", gateway).returncode == 2
    monkeypatch.setenv("SEGUE_API_KEY", "sesame")
    assert run("status", "--url", gateway).returncode == 1
    assert run("status", "--url", gateway, "--api-key", "other").returncode == 2


def test_status_as_tables_and_as_json(gateway: str) -> None:
    tables = run("status", "--url", gateway, "--api-key", "sesame", "--wide")
    assert tables.returncode == 1, tables.stderr  # answered, but not ready
    for text in ("no decode worker is ready", "4711", "3m10s", "3.0 MiB", "SIGKILL [oom]"):
        assert text in tables.stdout, text
    narrow = run("status", "--url", gateway, "--api-key", "sesame").stdout
    for text in ("no decode worker is ready", "3m10s", "47/64", "3.0 MiB", "SIGKILL [oom]"):
        assert text in narrow, text
    assert "27" in tables.stdout and "last life: wedged: the engine" in tables.stdout
    raw = run("status", "--url", gateway + "/", "--api-key", "sesame", "--json")
    assert json.loads(raw.stdout) == REPORT


def test_status_without_a_gateway_is_one_message(gateway: str) -> None:
    for url, told in (
        (gateway, "status 401"),
        ("http://127.0.0.1:9", "no gateway"),
        ("x", "no gate"),
    ):
        done = run("status", "--url", url)
        assert done.returncode == 2 and told in done.stderr
        assert "Traceback" not in done.stderr


def test_status_fits_80_columns_without_cutting_a_word() -> None:
    """As a deployment with long names and everything in use looks."""
    gauges = {"running_requests": 128.0, "waiting_requests": 2048.0}
    gauges |= {"kv_blocks_total": 182044.0, "kv_blocks_free": 3.0, "kv_blocks_cached": 1.0}
    worker = REPORT["workers"][0] | {
        "id": "prefill-long-11",
        "role": "prefill",
        "state": "draining",
        "state_seconds": 86_399.0,
        "gauges": gauges,
        "counters": {"kv_bytes_read": 1000.0 * 2**30},
    }
    pair = {
        "source": "prefill-long-11",
        "reader": "decode-long-12",
        "transport": "rdma",
        "detail": "rc_mlx5/mlx5_0:1",
        "measured": True,
        "gigabytes_per_second": 123.45,
        "seconds_ago": 3599.0,
        "refusal": "",
    }
    console = Console(width=80)
    with console.capture() as printed:
        for part in render(REPORT | {"workers": [worker], "pairs": [pair]}, wide=False):
            console.print(part)
    text = printed.get()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    row = next(line for line in text.splitlines() if line.lstrip().startswith("prefill-long-11"))
    wanted = ["prefill-long-11", "draining", "23h59m", "128", "2048", "182040/182044"]
    assert row.split() == [*wanted, "1000.0", "GiB"]


def test_silent_controller_and_slow_gateway_are_told() -> None:
    report = REPORT | {"controller": {"trouble": "no answer", "view_age_seconds": 31.0}}
    report["gateway"] = {"event_loop_lag_seconds": 2.04}
    console = Console(width=180)
    with console.capture() as printed:
        for part in render(report):
            console.print(part)
    assert "controller not heard of for 31 s: no answer" in printed.get()
    assert "the gateway's event loop was late by 2.0 s lately" in printed.get()


def test_short_forms() -> None:
    assert [duration(s) for s in (0, 59.9, 60, 3599, 7380)] == [
        "0s",
        "59s",
        "1m0s",
        "59m59s",
        "2h3m",
    ]
    assert [size(n) for n in (None, 0.0, 1023.0, 1536.0, 2.0**31, 2.0**42)] == [
        "",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "2.0 GiB",
        "4.0 TiB",
    ]


def test_of_many_pairs_the_refused_ones_are_shown() -> None:
    def pair(number: int, refusal: str = "") -> dict[str, Any]:
        return {
            "source": f"decode-{number}",
            "reader": "decode-0",
            "transport": "shm",
            "detail": "",
            "measured": True,
            "gigabytes_per_second": 1.0,
            "seconds_ago": 1.0,
            "refusal": refusal,
        }

    report = REPORT | {"pairs": [*map(pair, range(1, 50)), pair(50, "tcp is not rdma")]}
    console = Console(width=180)
    with console.capture() as printed:
        for part in render(report):
            console.print(part)
    text = printed.get()
    assert "tcp is not rdma" in text and "and 10 other pairs" in text
    assert sum("decode-" in line and "shm" in line for line in text.splitlines()) == SHOWN_PAIRS
