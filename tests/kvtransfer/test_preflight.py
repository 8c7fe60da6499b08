"""Preflights between processes over NIXL: what UCX says it uses, and a pattern that is not it."""

import importlib.util
from collections.abc import Iterator

import pytest

from segue.bench.transfer_bench import LAYOUT, PROBE_BYTES, Memory, source_process
from segue.cluster.identity import new_incarnation
from segue.kvtransfer.checksum import host_checksums
from segue.kvtransfer.medium import MediumKind
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.kvtransfer.preflight import ProbeFailure
from segue.kvtransfer.probe_area import PAGE_BYTES, pattern
from segue.kvtransfer.receiver import Receiver

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12")),
    reason="NIXL is not installed",
)

SOURCE = new_incarnation()


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """Connected to SOURCE, which runs as another process."""
    memory = Memory(own := new_incarnation(), 1)
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setenv("UCX_TLS", request.param)
        with source_process(SOURCE, 1) as metadata:
            transport = NixlTransport(own)
            transport.register(memory.address, memory.array.nbytes, "cpu")
            sums = host_checksums(memory.blocks, LAYOUT)
            receiver = Receiver(transport, LAYOUT, sums, area=memory.area)
            receiver.start()
            receiver.connect(SOURCE, metadata, LAYOUT.num_blocks).result(10)
            before = memory.blocks[:PAGE_BYTES].tobytes(), memory.blocks[-PAGE_BYTES:].tobytes()
            yield receiver
            after = memory.blocks[:PAGE_BYTES].tobytes(), memory.blocks[-PAGE_BYTES:].tobytes()
            receiver.stop()
    assert before == after  # the blocks beside the slots


@pytest.mark.parametrize("receiver", ["", "tcp"], indirect=True, ids=["any", "tcp"])
def test_the_pattern_comes_by_what_ucx_names(
    receiver: Receiver, request: pytest.FixtureRequest
) -> None:
    for num_bytes in (PROBE_BYTES, PAGE_BYTES + 1):
        result = receiver.probe(SOURCE, pattern(SOURCE, num_bytes), 10.0).result.result(15)
        assert result.num_bytes == num_bytes and result.gigabytes_per_second > 0
        allowed = {MediumKind.TCP} if "[tcp]" in request.node.name else {"shm", "tcp"}
        assert result.medium.measured and result.medium.kind in allowed
    assert receiver.kv_bytes_read == 0 < receiver.transport.bytes_read


@pytest.mark.parametrize("receiver", ["tcp"], indirect=True)
def test_the_pattern_of_another_life_is_refused(receiver: Receiver) -> None:
    probe = receiver.probe(SOURCE, pattern(new_incarnation(), PROBE_BYTES), 10.0)
    with pytest.raises(ProbeFailure, match="not those of the pattern"):
        probe.result.result(15)
    good = receiver.probe(SOURCE, pattern(SOURCE, PROBE_BYTES), 10.0)
    assert good.result.result(15).medium.kind is MediumKind.TCP
