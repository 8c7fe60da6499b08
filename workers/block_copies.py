"""Carries out block copies on the KV memory, one after another, and owns the host tier's memory."""

from collections.abc import Sequence

import torch

from segue.workers.device_work import DeviceWork
from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)


class BlockCopier:
    """`device` is the KV tensor, block by block; the host tier has blocks of the same bytes.

    `work` keeps copies in order among each other and apart from every forward pass.
    """

    def __init__(self, device: torch.Tensor, num_host_blocks: int, work: DeviceWork) -> None:
        self._device = device
        self._host = torch.empty(
            (num_host_blocks, *device.shape[1:]),
            dtype=device.dtype,
            pin_memory=device.is_cuda and num_host_blocks > 0,
        )
        self._work = work

    def run(self, operations: Sequence[BlockOperation]) -> None:
        """When it returns, all of them are done."""
        self._work.copy(lambda: self._copy(operations))

    def _copy(self, operations: Sequence[BlockOperation]) -> None:
        device, host = self._device, self._host
        for operation in operations:
            match operation:
                case CopyBlock(source, target):  # whole: one contiguous piece of memory
                    device[target].copy_(device[source], non_blocking=True)
                case OffloadBlock(block_id, slot):
                    host[slot].copy_(device[block_id], non_blocking=True)
                case OnboardBlock(slot, block_id):
                    device[block_id].copy_(host[slot], non_blocking=True)
