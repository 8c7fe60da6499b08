"""The transfer thread: bytes arrive, are verified, and its two ends are told apart."""

import ctypes
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from segue.cluster.errors import TransferError
from segue.kvtransfer.checksum import host_checksums, memory_view
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.loopback_transport import Faults, LoopbackFabric, LoopbackTransport
from segue.kvtransfer.receiver import BlockRead, Receiver
from segue.kvtransfer.transport import ReadHandle, ReadState

LAYOUT = KVLayout(8, 2, 1, 4, 4, "int8", 1, scale_bytes=4)


class Memory:
    """Eight blocks; at the source, block i is full of bytes 16 + i."""

    def __init__(self, fill: bool) -> None:
        self.buffer = (ctypes.c_ubyte * LAYOUT.num_bytes)()
        if fill:
            for block in range(LAYOUT.num_blocks):
                self.fill(block, 16 + block)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.buffer)

    @property
    def view(self) -> memoryview:
        return memory_view(self.address, LAYOUT.num_bytes)

    def fill(self, block: int, value: int) -> None:
        start = LAYOUT.offset(block)
        ctypes.memset(self.address + start, value, LAYOUT.block_bytes)

    def block(self, index: int) -> bytes:
        start = LAYOUT.offset(index)
        return bytes(self.view[start : start + LAYOUT.block_bytes])


class Pair:
    def __init__(self) -> None:
        self.fabric = LoopbackFabric()
        self.source, self.target = Memory(True), Memory(False)
        source = LoopbackTransport(self.fabric, "source")
        metadata = source.register(self.source.address, LAYOUT.num_bytes, "cpu")
        target = LoopbackTransport(self.fabric, "target")
        target.register(self.target.address, LAYOUT.num_bytes, "cpu")
        self.receiver = Receiver(target, LAYOUT, host_checksums(self.target.view, LAYOUT))
        self.receiver.start()
        self.metadata = metadata
        self.receiver.connect("source", metadata, LAYOUT.num_blocks).result(5)

    def sums(self, *blocks: int) -> tuple[int, ...]:
        return tuple(host_checksums(self.source.view, LAYOUT)(blocks))

    def read(
        self, remote: tuple[int, ...], local: tuple[int, ...], timeout: float = 5.0
    ) -> BlockRead:
        return self.receiver.read("source", remote, local, self.sums(*remote), timeout)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.receiver.stop()


def failure(future: Future[None]) -> str:
    with pytest.raises(TransferError) as caught:
        future.result(5)
    return caught.value.message


def test_blocks_arrive_where_they_should(pair: Pair) -> None:
    read = pair.read((1, 2, 7), (4, 5, 0))
    read.verified.result(5)
    read.terminal.result(5)
    assert [pair.target.block(i) for i in (4, 5, 0)] == [pair.source.block(i) for i in (1, 2, 7)]
    assert pair.target.block(1) == bytes(LAYOUT.block_bytes)
    assert pair.receiver.transport.bytes_read == 3 * LAYOUT.block_bytes


def test_a_source_that_reuses_its_blocks_before_a_late_read_is_caught(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_polls=20))
    read = pair.read((3,), (3,))
    pair.source.fill(3, 99)
    assert "checksum" in failure(read.verified)
    read.terminal.result(5)


def test_corruption_on_the_way_is_caught(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(corrupt=True))
    assert "1 of 1" in failure(pair.read((3,), (3,)).verified)


def test_parts_of_blocks_add_up_to_whole_ones(pair: Pair) -> None:
    sums, blocks = pair.sums(1, 2), ((1, 2), (4, 5))
    first = pair.receiver.read("source", *blocks, (), 5.0, range(0, 1))
    first.verified.result(5)
    assert [pair.target.block(i)[: LAYOUT.layer_bytes] for i in (4, 5)] == [
        pair.source.block(i)[: LAYOUT.layer_bytes] for i in (1, 2)
    ]
    assert pair.target.block(4)[LAYOUT.layer_bytes :] == bytes(LAYOUT.layer_bytes)
    second = pair.receiver.read("source", *blocks, sums, 5.0, range(1, 2))
    second.verified.result(5)
    second.terminal.result(5)
    assert [pair.target.block(i) for i in (4, 5)] == [pair.source.block(i) for i in (1, 2)]
    assert pair.receiver.kv_bytes_read == 2 * LAYOUT.block_bytes
    assert first.num_bytes + second.num_bytes == 2 * LAYOUT.block_bytes


def test_a_part_that_was_spoilt_is_caught_by_the_whole_blocks_checksum(pair: Pair) -> None:
    sums = pair.sums(1)
    pair.fabric.set_faults(Faults(corrupt=True))
    pair.receiver.read("source", (1,), (4,), (), 5.0, range(0, 1)).verified.result(5)
    pair.fabric.set_faults(Faults())
    last = pair.receiver.read("source", (1,), (4,), sums, 5.0, range(1, 2))
    assert "1 of 1" in failure(last.verified)
    assert pair.receiver.num_corrupt_blocks == 1


def test_what_has_arrived_before_is_only_verified(pair: Pair) -> None:
    sums = pair.sums(1)
    pair.receiver.read("source", (1,), (4,), (), 5.0, range(0, 2)).verified.result(5)
    last = pair.receiver.read("source", (1,), (4,), sums, 5.0, range(2, 2))
    last.verified.result(5)
    last.terminal.result(5)
    assert pair.receiver.kv_bytes_read == LAYOUT.block_bytes
    pair.target.fill(4, 99)
    again = pair.receiver.read("source", (1,), (4,), sums, 5.0, range(2, 2))
    assert "1 of 1" in failure(again.verified)


def test_layers_that_do_not_exist_are_refused_before_a_read_starts(pair: Pair) -> None:
    read = pair.receiver.read("source", (1,), (4,), (), 5.0, range(1, 3))
    assert "layers [1, 3)" in failure(read.verified)
    read.terminal.result(5)


def test_a_failed_read_is_told_and_the_peer_can_be_connected_again(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(fail=True))
    read = pair.read((3,), (3,))
    assert "failed" in failure(read.verified)
    read.terminal.result(5)
    assert not pair.receiver.is_connected("source")
    assert "not connected" in failure(pair.read((3,), (3,)).verified)
    pair.fabric.set_faults(Faults())
    pair.receiver.connect("source", pair.metadata, LAYOUT.num_blocks).result(5)
    pair.read((3,), (3,)).verified.result(5)


def test_a_timeout_is_told_but_the_blocks_stay_quarantined(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(drop=True))
    read = pair.read((3,), (3,), timeout=0.1)
    assert "within its time" in failure(read.verified)
    assert pair.receiver.num_overdue == 1
    time.sleep(0.2)
    assert not read.terminal.done(), "a byte might still arrive"
    assert pair.receiver.num_in_flight == 1


def test_what_cannot_be_read_is_refused_before_it_starts(pair: Pair) -> None:
    for remote, local in [((1, 2), (1,)), ((99,), (1,)), ((1,), (99,)), ((1, 2), (3, 3))]:
        read = pair.receiver.read("source", remote, local, (), 5.0)
        assert failure(read.verified)
        read.terminal.result(5)
    assert failure(pair.receiver.read("stranger", (1,), (1,), (), 5.0).verified)


def test_stopping_ends_waiting_but_never_claims_that_reads_are_over(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(drop=True))
    read = pair.read((3,), (3,))
    while not pair.receiver.num_in_flight:
        time.sleep(0.001)
    pair.receiver.stop()
    assert "stops" in failure(read.verified)
    assert not read.terminal.done()


def test_who_stops_waiting_does_not_stop_the_read(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_seconds=0.1))
    read, other = pair.read((3,), (3,)), pair.read((4,), (4,))
    assert not read.verified.cancel() and not read.terminal.cancel()
    read.verified.result(5)
    other.terminal.result(5)
    assert pair.receiver.num_in_flight == 0


def test_a_transport_that_cannot_forget_a_peer_ends_nobody(pair: Pair) -> None:
    class Stubborn(LoopbackTransport):
        def disconnect(self, peer: str) -> None:
            raise RuntimeError("no")

    transport = Stubborn(pair.fabric, "stubborn")
    transport.register(pair.target.address, LAYOUT.num_bytes, "cpu")
    receiver = Receiver(transport, LAYOUT, host_checksums(pair.target.view, LAYOUT))
    receiver.start()
    receiver.connect("source", pair.metadata, LAYOUT.num_blocks).result(5)
    receiver.disconnect("source")
    receiver.connect("source", pair.metadata, LAYOUT.num_blocks)
    assert failure(receiver.read("nobody", (1,), (1,), (), 5.0).verified)  # the thread lives
    receiver.stop()


def test_a_read_that_cannot_be_judged_ends_and_spares_the_others(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_polls=20))
    odd = pair.receiver.read("source", (3,), (3,), (1, 2), 5.0)  # two checksums for one block
    other = pair.read((4,), (4,))
    assert "ValueError" in failure(odd.verified)
    odd.terminal.result(5)
    other.verified.result(5)
    assert pair.receiver.num_overdue == 0


def test_a_read_that_the_transport_loses_is_quarantined_alone(pair: Pair) -> None:
    class Loses(LoopbackTransport):
        lost: ReadHandle | None = None

        def poll(self, handle: ReadHandle) -> ReadState:
            self.lost = handle if self.lost is None else self.lost
            if handle == self.lost:
                raise RuntimeError("which read?")
            return super().poll(handle)

    transport = Loses(pair.fabric, "loses")
    transport.register(pair.target.address, LAYOUT.num_bytes, "cpu")
    receiver = Receiver(transport, LAYOUT, host_checksums(pair.target.view, LAYOUT))
    receiver.start()
    receiver.connect("source", pair.metadata, LAYOUT.num_blocks).result(5)
    first, second = (
        receiver.read("source", (block,), (block,), pair.sums(block), 5.0) for block in (3, 4)
    )
    assert "which read" in failure(first.verified)
    second.verified.result(5)
    assert not first.terminal.done() and receiver.num_overdue == 1 and not receiver.num_in_flight
    receiver.stop()


def test_more_reads_than_may_be_under_way_wait_for_their_turn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.kvtransfer.receiver.MAX_READS_AT_ONCE", 2)
    pair.fabric.set_faults(Faults(delay_seconds=1.0))
    slow = [pair.read((block,), (block,)) for block in (0, 1)]
    late, *others = pair.read((2,), (2,), 0.1), *(pair.read((n,), (n,)) for n in range(3, 8))
    assert "did not begin" in failure(late.verified)
    late.terminal.result(5)  # nothing was ever posted: its blocks are free
    assert pair.receiver.num_in_flight == 2 and not any(read.terminal.done() for read in slow)
    pair.fabric.set_faults(Faults())
    for read in (*slow, *others):
        read.verified.result(5)
        read.terminal.result(5)
    there = [block for block in range(LAYOUT.num_blocks) if block != 2]
    assert [pair.target.block(n) for n in there] == [pair.source.block(n) for n in there]
    assert pair.target.block(2) == bytes(LAYOUT.block_bytes)
