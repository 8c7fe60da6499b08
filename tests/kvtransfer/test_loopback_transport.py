"""The loopback transport: late copies, and each fault it can be asked for."""

import numpy as np
import numpy.typing as npt
import pytest

from segue.cluster.errors import TransferError
from segue.kvtransfer.loopback_transport import Faults, LoopbackFabric, LoopbackTransport
from segue.kvtransfer.transport import ByteRange, ReadState, Transport

DONE, FAILED, IN_FLIGHT = ReadState.DONE, ReadState.FAILED, ReadState.IN_FLIGHT
REMOTE = [ByteRange(2, 3), ByteRange(10, 2)]
LOCAL = [ByteRange(0, 3), ByteRange(20, 2)]


class Pair:
    """A source and a reader on one fabric."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fabric = LoopbackFabric(clock=lambda: self.now)
        self.source: Transport = LoopbackTransport(self.fabric, "source")
        self.reader: Transport = LoopbackTransport(self.fabric, "reader")
        self.theirs: npt.NDArray[np.uint8] = np.arange(1, 33, dtype=np.uint8)
        self.ours: npt.NDArray[np.uint8] = np.zeros(32, np.uint8)
        self.metadata = self.source.register(self.theirs.ctypes.data, 32, "cpu")
        self.reader.register(self.ours.ctypes.data, 32, "cpu")
        self.reader.connect("peer", self.metadata)

    def landed(self) -> list[int]:
        return [int(byte) for byte in (*self.ours[0:3], *self.ours[20:22])]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_reads_copy_bytes(pair: Pair) -> None:
    handle = pair.reader.post_read("peer", REMOTE, LOCAL)
    assert pair.landed() == [0] * 5
    assert pair.reader.poll(handle) is DONE
    assert pair.landed() == [3, 4, 5, 11, 12]
    assert int(np.count_nonzero(pair.ours)) == 5
    assert pair.reader.bytes_read == 5
    with pytest.raises(TransferError, match="spent"):
        pair.reader.poll(handle)


def test_a_late_reader_sees_what_the_source_wrote_since(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_polls=2))
    handle = pair.reader.post_read("peer", REMOTE, LOCAL)
    assert [pair.reader.poll(handle) for _ in range(2)] == [IN_FLIGHT] * 2
    pair.theirs[:] = 99
    assert pair.reader.poll(handle) is DONE
    assert pair.landed() == [99] * 5


def test_delay_by_the_clock(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_seconds=1.5))
    handle = pair.reader.post_read("peer", REMOTE, LOCAL)
    pair.now = 1.4
    assert pair.reader.poll(handle) is IN_FLIGHT
    pair.now = 1.5
    assert pair.reader.poll(handle) is DONE


def test_dropped_reads_stay_in_flight_until_the_peer_is_forgotten(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(drop=True))
    handle = pair.reader.post_read("peer", REMOTE, LOCAL)
    pair.now = 1e9
    assert {pair.reader.poll(handle) for _ in range(100)} == {IN_FLIGHT}
    pair.reader.disconnect("peer")
    assert pair.reader.poll(handle) is FAILED
    assert pair.landed() == [0] * 5


def test_failed_reads_copy_and_count_nothing(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(fail=True), source="source")
    assert pair.reader.poll(pair.reader.post_read("peer", REMOTE, LOCAL)) is FAILED
    assert pair.landed() == [0] * 5
    assert pair.reader.bytes_read == 0
    pair.fabric.set_faults(Faults(), source="source")
    assert pair.reader.poll(pair.reader.post_read("peer", REMOTE, LOCAL)) is DONE


def test_corrupt_reads_are_done_and_wrong(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(corrupt=True))
    assert pair.reader.poll(pair.reader.post_read("peer", REMOTE, LOCAL)) is DONE
    assert pair.landed() == [3 ^ 0xFF, 4, 5, 11 ^ 0xFF, 12]
    np.testing.assert_array_equal(pair.theirs, np.arange(1, 33))


def test_faults_of_another_source_do_not_matter(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(drop=True), source="other")
    assert pair.reader.poll(pair.reader.post_read("peer", REMOTE, LOCAL)) is DONE


def test_a_closed_source_fails_its_readers(pair: Pair) -> None:
    handle = pair.reader.post_read("peer", REMOTE, LOCAL)
    pair.source.close()
    assert pair.reader.poll(handle) is FAILED
    with pytest.raises(TransferError, match="not connected"):
        pair.reader.post_read("peer", REMOTE, LOCAL)
    successor = LoopbackTransport(pair.fabric, "source")
    successor.register(pair.theirs.ctypes.data, 32, "cpu")


def test_what_cannot_be_read_is_refused(pair: Pair) -> None:
    fits = [ByteRange(0, 8)]
    for remote, local, message in [
        ([ByteRange(25, 8)], fits, "remote region"),
        (fits, [ByteRange(-1, 8)], "local region"),
        (fits, [ByteRange(0, 9)], "cannot fill"),
        ([], [], "cannot fill"),
    ]:
        with pytest.raises(TransferError, match=message):
            pair.reader.post_read("peer", remote, local)
    with pytest.raises(TransferError, match="not connected"):
        pair.reader.post_read("stranger", fits, fits)
    with pytest.raises(TransferError, match="connected already"):
        pair.reader.connect("peer", pair.metadata)
    for metadata in (b"", b"[]", b"{}", b'{"kind": "segue-nixl/1", "agent_name": "source"}'):
        with pytest.raises(TransferError, match="not the metadata"):
            pair.reader.connect("new", metadata)
    with pytest.raises(TransferError, match="cuda:0"):
        LoopbackTransport(pair.fabric, "gpu").register(1, 1, "cuda:0")
    with pytest.raises(TransferError, match="no region"):
        LoopbackTransport(pair.fabric, "idle").post_read("peer", fits, fits)
