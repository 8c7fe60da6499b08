"""A worker's KV memory as the transfer layer sees it: one region, registered once."""

from segue.cluster.config.transfer import TransferConfig
from segue.kvtransfer.checksum import (
    BlockChecksums,
    device_checksums,
    host_checksums,
    memory_view,
)
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.probe_area import ProbeArea
from segue.kvtransfer.receiver import Receiver
from segue.kvtransfer.transport import Transport
from segue.workers.model_runner import ModelRunner


def open_region(
    runner: ModelRunner, layout: KVLayout, transport: Transport, incarnation: str
) -> tuple[Receiver, bytes]:
    """Register the blocks and, behind them, the memory of preflights; returns the metadata too."""
    area = ProbeArea(runner.spare_bytes, layout.num_bytes, incarnation)
    num_bytes = layout.num_bytes + runner.spare_bytes.nbytes
    metadata = transport.register(runner.kv_cache.data_ptr(), num_bytes, str(runner.device))
    return Receiver(transport, layout, _checksums(runner, layout), area=area), metadata


def announced_checksums(
    runner: ModelRunner, layout: KVLayout, transfer: TransferConfig
) -> BlockChecksums | None:
    """What sums up blocks before they are announced; None: nothing does, so nothing is verified."""
    wanted = transfer.checksum
    if wanted == "auto":
        wanted = runner.device.type == "cpu"
    return _checksums(runner, layout) if wanted else None


def _checksums(runner: ModelRunner, layout: KVLayout) -> BlockChecksums:
    if runner.device.type != "cpu":
        return device_checksums(runner.kv_cache)
    return host_checksums(memory_view(runner.kv_cache.data_ptr(), layout.num_bytes), layout)
