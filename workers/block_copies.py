"""Carries out block copies on the KV memory, one after another, and owns the host tier's memory."""

from collections.abc import Sequence

import torch

from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)


class BlockCopier:
    """`device` is the KV tensor, block by block; the host tier has blocks of the same bytes.

    On a GPU all copies run on one side stream, which waits for what was computed before and is
    waited for by what is computed after. So copies stay in order among each other and never
    overlap a forward pass; only the CPU runs ahead.
    """

    def __init__(self, device: torch.Tensor, num_host_blocks: int) -> None:
        self._device = device
        self._host = torch.empty(
            (num_host_blocks, *device.shape[1:]),
            dtype=device.dtype,
            pin_memory=device.is_cuda and num_host_blocks > 0,
        )
        self._stream: torch.cuda.Stream | None = None
        if device.is_cuda:
            self._stream = torch.cuda.Stream(device.device)  # type: ignore[no-untyped-call]

    def run(self, operations: Sequence[BlockOperation]) -> None:
        if self._stream is None:
            self._copy(operations)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device.device))
        with torch.cuda.stream(self._stream):
            self._copy(operations)
        torch.cuda.current_stream(self._device.device).wait_stream(self._stream)

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
