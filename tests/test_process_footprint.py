"""The measure of leaks itself: what is leaked on purpose is found, and named."""

import os
import socket
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from process_footprint import MEBIBYTE, Footprint, Slack, growth, measure, shrunk

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
STRICT = Slack(threads=0)


def test_sockets_and_files_are_counted_by_kind(tmp_path: Path) -> None:
    before = measure(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "open").open("w"):
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            after = measure(os.getpid())
    assert after.descriptors - before.descriptors == Counter(socket=3, file=1)
    told = " ".join(growth(before, after, Slack(threads=100)))
    assert "3 more socket descriptors" in told and "1 more file descriptors" in told
    assert f"socket :{port} -> :0 listening" in told and "established" in told
    assert str(tmp_path / "open") in told
    assert growth(after, before, STRICT) == []


def test_threads_are_counted() -> None:
    before = measure(os.getpid())
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, args=(20,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        after = measure(os.getpid())
    finally:
        end.set()
        for thread in threads:
            thread.join(20)
    (told,) = growth(before, after, Slack(threads=2))
    assert told.startswith("3 more threads: ")
    assert growth(before, after, Slack(threads=3)) == []


def test_memory_is_counted() -> None:
    before = measure(os.getpid())
    held = bytearray(os.urandom(1024)) * 1024 * 32
    (told,) = growth(before, measure(os.getpid()), Slack(threads=100, resident_bytes=16 * MEBIBYTE))
    assert told.endswith("MiB more memory") and len(held) == 32 * MEBIBYTE


async def test_what_goes_away_in_time_is_no_leak_and_what_stays_is() -> None:
    before = measure(os.getpid())
    late = socket.socket()
    timer = threading.Timer(0.3, late.close)
    timer.start()
    await shrunk(os.getpid(), before, Slack(threads=100))
    timer.join()
    with socket.socket(), pytest.raises(AssertionError, match="1 more socket descriptors"):
        await shrunk(os.getpid(), before, Slack(threads=100), timeout_s=0.2)


def test_a_kind_may_grow_by_its_slack_and_many_are_told_in_short() -> None:
    few, many = Counter(socket=2), Counter(socket=12)
    details = Counter({f"socket :{port} -> :9 established": 1 for port in range(10)})
    before = Footprint(few, Counter(), 0, Counter())
    after = Footprint(many, Counter(), 0, details)
    assert growth(before, after, Slack(descriptors=10)) == []
    assert "and 2 others" in growth(before, after, Slack(descriptors=9))[1]


def test_a_process_that_is_gone_is_an_error() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(child, 0)
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        measure(child)
