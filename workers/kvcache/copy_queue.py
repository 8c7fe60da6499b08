"""The block copies that are ordered but have not run, and the device blocks they hold still."""

from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)
from segue.workers.kvcache.block_pool import BlockPool


class CopyQueue:
    """One list in the order in which the bookkeeping happened, which is the order to run it in.

    What a copy reads was written by an earlier operation or an earlier step, and what it
    overwrites was read by earlier operations: so whoever runs the list in order, between two
    steps, meets no hazard. Transfers from other processes stand outside of that order; they are
    kept away because a block takes part in no lease while it takes part in a copy, and because
    nobody is told of a landing block before the copies have run.

    An offloaded block is not held still: it is free at once, for what is written after the copy.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._waiting: list[BlockOperation] = []
        self._running: list[BlockOperation] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        self._pool.begin_copy(source)
        self._pool.begin_copy(target)
        self._waiting.append(CopyBlock(source, target, num_tokens))

    def offload(self, block_id: int, slot: int) -> None:
        self._waiting.append(OffloadBlock(block_id, slot))

    def onboard(self, slot: int, block_id: int) -> None:
        self._pool.begin_copy(block_id)
        self._waiting.append(OnboardBlock(slot, block_id))

    def take(self) -> tuple[BlockOperation, ...]:
        """Everything that waits, to be run now; then comes `end`."""
        if self._running:
            raise ValueError("copies were taken and have not ended")
        self._running, self._waiting = self._waiting, []
        return tuple(self._running)

    def end(self) -> None:
        """What was taken has run, or never will: its blocks are held no more."""
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
                case CopyBlock(source, target):
                    self._pool.end_copy(source)
                    self._pool.end_copy(target)
                case OnboardBlock(_, block_id):
                    self._pool.end_copy(block_id)
                case OffloadBlock():
                    pass
