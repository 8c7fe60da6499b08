"""Client commands find the gateway by themselves, and say what else may name it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from segue.cluster.errors import ConfigurationError
from segue.deploy.gateway_address import DEFAULT_URL, chosen_url, whole_url
from segue.deploy.running_servers import announced, newest_server
from segue.deploy.serve import local_url


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGUE_CACHE", str(tmp_path))
    monkeypatch.delenv("SEGUE_URL", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("8123", "http://127.0.0.1:8123"),
        (":8123", "http://127.0.0.1:8123"),
        ("box:8123", "http://box:8123"),
        ("box", "http://box"),
        ("https://box:1/x", "https://box:1/x"),
    ],
)
def test_short_names_of_a_gateway(text: str, url: str) -> None:
    assert whole_url(text) == url
    assert chosen_url(text) == url


def test_an_option_goes_before_the_environment_and_that_before_what_runs(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen_url(None) == DEFAULT_URL
    with announced("http://127.0.0.1:7001", cache):
        assert chosen_url(None) == "http://127.0.0.1:7001"
        monkeypatch.setenv("SEGUE_URL", "7002")
        assert chosen_url(None) == "http://127.0.0.1:7002"
        assert chosen_url(None, 7003) == "http://127.0.0.1:7003"
        with pytest.raises(ConfigurationError, match="--url or --port, not both"):
            chosen_url("7004", 7003)
    assert newest_server(cache) is None


def test_of_several_the_one_started_last_that_lives(cache: Path) -> None:
    folder = cache / "running"
    folder.mkdir()
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        for pid in (os.getpid(), sleeper.pid):
            (folder / f"{pid}.json").write_text(f'{{"url": "http://of-{pid}"}}')
        later = os.path.getmtime(folder / f"{os.getpid()}.json") + 50
        os.utime(folder / f"{sleeper.pid}.json", (later, later))
        assert newest_server(cache) == f"http://of-{sleeper.pid}"
    finally:
        sleeper.kill()
        sleeper.communicate()
    assert newest_server(cache) == f"http://of-{os.getpid()}"
    assert [path.stem for path in folder.iterdir()] == [str(os.getpid())]  # the dead one's is gone


def test_the_number_of_a_dead_process_may_be_given_again(cache: Path) -> None:
    note = cache / "running" / f"{os.getpid()}.json"
    note.parent.mkdir()
    note.write_text('{"url": "http://of-the-dead"}')
    os.utime(note, (1000, 1000))  # written before this process began
    assert newest_server(cache) is None


def test_a_folder_that_can_not_be_written_stops_nobody(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with announced("http://x", file):
        assert newest_server(file) is None


def test_who_listens_everywhere_is_asked_here() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        assert local_url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
