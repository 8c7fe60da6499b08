"""The block copies that are ordered but have not run, in the order in which they must run."""

from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)
from segue.workers.kvcache.block_pool import BlockPool


class CopyQueue:
    """One list in the order of the bookkeeping, which is the order to run it in.

    What a copy reads was written by an earlier copy or an earlier step, and what it overwrites
    was read by earlier ones: so whoever runs the list in order, between two steps, meets no
    hazard, and a block that a copy reads may be given up at once to what is written later.
    Transfers with other processes stand outside of that order: a block is not leased while a copy
    into it is ordered, and nobody is told of a landing block before the copies have run.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._waiting: list[BlockOperation] = []
        self._running: list[BlockOperation] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        self._pool.expect_copy(target)
        self._waiting.append(CopyBlock(source, target, num_tokens))

    def offload(self, block_id: int, slot: int) -> None:
        self._waiting.append(OffloadBlock(block_id, slot))

    def onboard(self, slot: int, block_id: int) -> None:
        self._pool.expect_copy(block_id)
        self._waiting.append(OnboardBlock(slot, block_id))

    def take(self) -> tuple[BlockOperation, ...]:
        """Everything that waits, to be run now; then comes `end`."""
        if self._running:
            raise ValueError("copies were taken and have not ended")
        self._running, self._waiting = self._waiting, []
        return tuple(self._running)

    def end(self) -> None:
        """What was taken has run."""
        self._release(self._running)
        self._running = []

    def abandon(self) -> set[int]:
        """Forget all copies; returns the device blocks whose content nobody knows now."""
        lost = [*self._running, *self._waiting]
        self._release(lost)
        self._running, self._waiting = [], []
        targets = {op.target for op in lost if isinstance(op, CopyBlock)}
        return targets | {op.block_id for op in lost if isinstance(op, OnboardBlock)}

    def _release(self, operations: list[BlockOperation]) -> None:
        for operation in operations:
            match operation:
                case CopyBlock(_, block_id) | OnboardBlock(_, block_id):
                    self._pool.end_copy(block_id)
                case OffloadBlock():
                    pass
