"""A worker's KV memory as the transfer layer sees it: one region, registered once."""

from collections.abc import Callable, Sequence

from segue.cluster.config.transfer import TransferConfig
from segue.kvtransfer.checksum import block_checksums, memory_view
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.probe_area import ProbeArea
from segue.kvtransfer.receiver import Receiver
from segue.kvtransfer.transport import Transport
from segue.workers.model_runner import ModelRunner

BlockSums = Callable[[Sequence[int]], tuple[int, ...]]


def open_region(
    runner: ModelRunner, layout: KVLayout, transport: Transport, incarnation: str
) -> tuple[Receiver, bytes]:
    """Register the blocks and, behind them, the memory of preflights; returns the metadata too."""
    area = ProbeArea(runner.spare_bytes, layout.num_bytes, incarnation)
    num_bytes = layout.num_bytes + runner.spare_bytes.nbytes
    metadata = transport.register(runner.kv_cache.data_ptr(), num_bytes, str(runner.device))
    on_host = runner.device.type == "cpu"
    blocks = _host_view(runner, layout) if on_host else memoryview(b"")
    return Receiver(transport, layout, blocks, area=area), metadata


def block_sums(runner: ModelRunner, layout: KVLayout, transfer: TransferConfig) -> BlockSums | None:
    """What sums up blocks before they are announced, if anything does."""
    if not transfer.checksum or runner.device.type != "cpu":
        return None  # on a GPU the bytes are not where the CPU could sum them up
    region = _host_view(runner, layout)
    return lambda block_ids: tuple(block_checksums(region, layout, block_ids))


def _host_view(runner: ModelRunner, layout: KVLayout) -> memoryview:
    return memory_view(runner.kv_cache.data_ptr(), layout.num_bytes)
