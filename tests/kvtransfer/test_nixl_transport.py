"""Real reads between real processes over NIXL, and what happens when a peer stops or dies."""

import base64
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from segue.cluster.errors import TransferError
from segue.cluster.identity import new_incarnation
from segue.kvtransfer.medium import UNKNOWN_MEDIUM, MediumKind
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.kvtransfer.transport import ByteRange, ReadHandle, ReadState

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12")),
    reason="NIXL is not installed",
)

NUM_BYTES = 24 * 2**20
WHOLE = [ByteRange(0, NUM_BYTES)]
Bytes = npt.NDArray[np.uint8]


class Source:
    """A process with a region of known random bytes."""

    def __init__(self, seed: int) -> None:
        self.peer = new_incarnation()
        self.expected: Bytes = np.random.default_rng(seed).integers(
            0, 256, NUM_BYTES, dtype=np.uint8
        )
        script = Path(__file__).with_name("nixl_source.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), self.peer, str(NUM_BYTES), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.metadata = base64.b64decode(self._answer()["metadata"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("{"), f"NIXL is not quiet: {line!r}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def obey(self, command: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self._answer()[command])

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Reader:
    """Our own end: a transport and the region it reads into."""

    def __init__(self, unit_bytes: int | None = None) -> None:
        self.memory: Bytes = np.zeros(NUM_BYTES, np.uint8)
        self.transport = NixlTransport(new_incarnation(), unit_bytes=unit_bytes)
        self.transport.register(self.memory.ctypes.data, NUM_BYTES, "cpu")

    def connect(self, source: Source) -> None:
        self.transport.connect(source.peer, source.metadata)
        # The first read needs both sides to meet; later ones show the effect under test alone.
        first = [ByteRange(0, 64)]
        assert self.wait(self.transport.post_read(source.peer, first, first)) is ReadState.DONE

    def read_whole(self, source: Source) -> ReadHandle:
        return self.transport.post_read(source.peer, WHOLE, WHOLE)

    def wait(self, handle: ReadHandle, seconds: float = 10.0) -> ReadState:
        """Poll until the read ends or `seconds` are over."""
        deadline = time.monotonic() + seconds
        while (state := self.transport.poll(handle)) is ReadState.IN_FLIGHT:
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        return state

    def can_read(self, source: Source) -> bool:
        try:
            handle = self.read_whole(source)
        except TransferError:
            return False
        return self.wait(handle) is not ReadState.FAILED

    def assert_untouched(self, seconds: float) -> None:
        """Fill the memory and see that nobody writes into it any more."""
        self.memory[:] = 77
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.transport.progress()
            time.sleep(0.001)
        assert np.all(self.memory == 77)


@pytest.fixture
def start() -> Iterator[Callable[[int], Source]]:
    sources: list[Source] = []

    def start_source(seed: int) -> Source:
        sources.append(Source(seed))
        return sources[-1]

    yield start_source
    for source in sources:
        source.end()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.transport.close()


@pytest.fixture
def slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP a read takes many polls, and needs the source's progress: it can be cut."""
    monkeypatch.setenv("UCX_TLS", "tcp")


def test_read_moves_exactly_the_bytes_asked_for(
    start: Callable[[int], Source], reader: Reader
) -> None:
    source = start(1)
    reader.connect(source)
    before = reader.transport.bytes_read
    remote = [ByteRange(4096, 1000), ByteRange(0, 16), ByteRange(NUM_BYTES - 7, 7)]
    local = [ByteRange(0, 1000), ByteRange(5000, 16), ByteRange(2000, 7)]
    reader.memory[:] = 0
    handle = reader.transport.post_read(source.peer, remote, local)
    assert reader.wait(handle) is ReadState.DONE
    expected = np.zeros_like(reader.memory)
    for there, here in zip(remote, local, strict=True):
        expected[here.offset : here.end] = source.expected[there.offset : there.end]
    np.testing.assert_array_equal(reader.memory, expected)
    assert reader.transport.bytes_read == before + 1023
    assert reader.transport.name == "nixl/ucx"
    with pytest.raises(TransferError, match="spent"):
        reader.transport.poll(handle)


def test_whole_blocks_are_read_as_other_ranges_are(start: Callable[[int], Source]) -> None:
    """Blocks named by index and ranges described anew move the same bytes, and do not mix."""
    unit = 4096
    source, reader = start(1), Reader(unit_bytes=unit)
    try:
        reader.connect(source)
        wholes = [(7, 0, 1), (0, 9, 2), (NUM_BYTES // unit - 1, 20, 1)]  # theirs, ours, how many
        for shift in (0, 16):  # with 16 nothing is a whole block
            remote = [ByteRange(a * unit, n * unit - shift) for a, _, n in wholes]
            local = [ByteRange(b * unit + shift, n * unit - shift) for _, b, n in wholes]
            reader.memory[:] = 0
            handle = reader.transport.post_read(source.peer, remote, local)
            assert reader.wait(handle) is ReadState.DONE
            expected = np.zeros_like(reader.memory)
            for there, here in zip(remote, local, strict=True):
                expected[here.offset : here.end] = source.expected[there.offset : there.end]
            np.testing.assert_array_equal(reader.memory, expected)
        assert reader.transport._of_units(source.peer, [ByteRange(0, unit)], [ByteRange(0, unit)])
        reader.transport.disconnect(source.peer)
        reader.connect(source)  # its list was made anew
        assert reader.wait(reader.read_whole(source)) is ReadState.DONE
        np.testing.assert_array_equal(reader.memory, source.expected)
    finally:
        reader.transport.close()


def test_the_medium_is_what_ucx_says_it_is(start: Callable[[int], Source], reader: Reader) -> None:
    source = start(1)
    assert reader.transport.medium(source.peer) == UNKNOWN_MEDIUM
    reader.connect(source)
    medium = reader.transport.medium(source.peer)
    assert medium.kind in (MediumKind.SHM, MediumKind.TCP)  # as the machine allows
    assert medium.measured and "/" in medium.detail
    reader.transport.disconnect(source.peer)
    assert reader.transport.medium(source.peer) == UNKNOWN_MEDIUM


@pytest.mark.usefixtures("slow_link")
def test_each_peer_has_its_own_medium(start: Callable[[int], Source], reader: Reader) -> None:
    sources = start(1), start(2)
    for source in sources:
        reader.connect(source)
    for source in sources:
        medium = reader.transport.medium(source.peer)
        assert medium.kind is MediumKind.TCP and medium.measured and "tcp/" in medium.detail
    sources[0].end()
    assert reader.transport.medium(sources[1].peer).kind is MediumKind.TCP


def test_what_cannot_be_read_is_refused_before_it_is_posted(
    start: Callable[[int], Source], reader: Reader
) -> None:
    source = start(1)
    reader.connect(source)
    fits = [ByteRange(0, 8)]
    for remote, local, message in [
        ([ByteRange(NUM_BYTES - 7, 8)], fits, "remote region"),
        ([ByteRange(-1, 8)], fits, "remote region"),
        (fits, [ByteRange(NUM_BYTES, 8)], "local region"),
        ([ByteRange(0, 0)], [ByteRange(0, 0)], "remote region"),
        (fits, [ByteRange(0, 9)], "cannot fill"),
        (fits, [], "cannot fill"),
        ([], [], "cannot fill"),
    ]:
        with pytest.raises(TransferError, match=message):
            reader.transport.post_read(source.peer, remote, local)
    with pytest.raises(TransferError, match="not connected"):
        reader.transport.post_read("stranger", fits, fits)
    with pytest.raises(TransferError, match="connected already"):
        reader.transport.connect(source.peer, source.metadata)
    with pytest.raises(TransferError, match="another name"):
        reader.transport.connect("other name", source.metadata)
    reader.transport.disconnect("stranger")


def test_idle_agents_cost_no_cpu(start: Callable[[int], Source], reader: Reader) -> None:
    source = start(1)
    reader.connect(source)
    began = time.process_time()
    assert source.obey("measure") < 0.1
    assert time.process_time() - began < 0.1


@pytest.mark.usefixtures("slow_link")
def test_stopped_source_delays_its_readers_only(
    start: Callable[[int], Source], reader: Reader
) -> None:
    stopped, healthy = start(1), start(2)
    reader.connect(stopped)
    reader.connect(healthy)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    handle = reader.read_whole(stopped)
    assert reader.wait(handle, 0.3) is ReadState.IN_FLIGHT
    part = [ByteRange(NUM_BYTES - 4096, 4096)]
    other = reader.transport.post_read(healthy.peer, part, part)
    assert reader.wait(other) is ReadState.DONE
    np.testing.assert_array_equal(reader.memory[-4096:], healthy.expected[-4096:])
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert reader.wait(handle) is ReadState.DONE
    np.testing.assert_array_equal(reader.memory, stopped.expected)


@pytest.mark.usefixtures("slow_link")
def test_killed_source_fails_its_reads_and_no_others(
    start: Callable[[int], Source], reader: Reader
) -> None:
    killed, healthy = start(1), start(2)
    reader.connect(killed)
    reader.connect(healthy)
    before = reader.transport.bytes_read
    killed.obey("idle")
    handles = [reader.read_whole(killed) for _ in range(3)]
    assert reader.transport.poll(handles[0]) is ReadState.IN_FLIGHT
    killed.process.kill()
    assert [reader.wait(handle) for handle in handles] == [ReadState.FAILED] * 3
    reader.assert_untouched(0.2)
    assert reader.transport.bytes_read == before
    assert reader.wait(reader.read_whole(healthy)) is ReadState.DONE
    np.testing.assert_array_equal(reader.memory, healthy.expected)
    assert not reader.can_read(killed)
    reader.transport.disconnect(killed.peer)
    successor = start(3)
    reader.connect(successor)
    assert reader.wait(reader.read_whole(successor)) is ReadState.DONE
    np.testing.assert_array_equal(reader.memory, successor.expected)


@pytest.mark.usefixtures("slow_link")
@pytest.mark.parametrize("polls", [1, 6])
def test_source_killed_in_mid_read_never_gives_wrong_bytes(
    start: Callable[[int], Source], reader: Reader, polls: int
) -> None:
    source = start(1)
    reader.connect(source)
    reader.memory[:] = 0
    handle = reader.read_whole(source)
    for _ in range(polls):
        if reader.transport.poll(handle) is ReadState.DONE:
            np.testing.assert_array_equal(reader.memory, source.expected)
            return
    source.process.kill()
    if reader.wait(handle) is ReadState.DONE:
        np.testing.assert_array_equal(reader.memory, source.expected)
    else:
        reader.assert_untouched(0.2)


@pytest.mark.usefixtures("slow_link")
def test_disconnect_keeps_a_read_in_flight_until_it_has_ended(
    start: Callable[[int], Source], reader: Reader
) -> None:
    source = start(1)
    reader.connect(source)
    before = reader.transport.bytes_read
    source.obey("idle")
    handle = reader.read_whole(source)
    reader.transport.disconnect(source.peer)
    assert reader.wait(handle, 0.3) is ReadState.IN_FLIGHT
    with pytest.raises(TransferError, match="in flight"):
        reader.transport.connect(source.peer, source.metadata)
    source.obey("progress")
    assert reader.wait(handle) is ReadState.FAILED
    assert reader.transport.bytes_read == before
    reader.assert_untouched(0.2)
    reader.connect(source)


@pytest.mark.usefixtures("slow_link")
def test_close_ends_reads_in_flight(start: Callable[[int], Source], reader: Reader) -> None:
    source = start(1)
    reader.connect(source)
    source.obey("idle")
    handle = reader.read_whole(source)
    assert reader.transport.poll(handle) is ReadState.IN_FLIGHT
    reader.transport.close()
    reader.memory[:] = 77
    source.obey("progress")
    time.sleep(0.3)
    assert np.all(reader.memory == 77)
    with pytest.raises(TransferError, match="closed"):
        reader.transport.progress()


def test_unusable_metadata_and_devices_are_refused(reader: Reader) -> None:
    own = NixlTransport(new_incarnation())
    memory = np.zeros(64, np.uint8)
    with pytest.raises(TransferError, match="unknown device"):
        own.register(memory.ctypes.data, 64, "tpu")
    metadata = own.register(memory.ctypes.data, 64, "cpu")
    with pytest.raises(TransferError, match="already"):
        own.register(memory.ctypes.data, 64, "cpu")
    with pytest.raises(TransferError, match="another name"):
        own.connect("myself", metadata)
    fields = json.loads(metadata)
    for field, value in [("agent_metadata", "AAAA"), ("agent_name", "somebody")]:
        with pytest.raises(TransferError):
            reader.transport.connect("peer", json.dumps(fields | {field: value}).encode())
    own.close()
    own.close()
