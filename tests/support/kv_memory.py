"""KV memory in thought: each slot holds which token stands there, after which tokens, salted."""

from collections.abc import Iterable

from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)
from segue.workers.sequence import Sequence

Content = tuple[str, tuple[int, ...]] | None  # the salt, and all tokens up to the slot's own


def content_at(sequence: Sequence, position: int) -> Content:
    return sequence.request.cache_salt, tuple(sequence.tokens[: position + 1])


class KVMemory:
    """Device blocks and host slots; copies and writes happen when they are called for."""

    def __init__(self, num_blocks: int, block_size: int, num_slots: int = 0) -> None:
        self.block_size = block_size
        self.device: list[list[Content]] = [[None] * block_size for _ in range(num_blocks)]
        self.host: list[list[Content]] = [[None] * block_size for _ in range(num_slots)]

    def run(self, operations: Iterable[BlockOperation]) -> None:
        for operation in operations:
            match operation:
                case CopyBlock(source, target, num_tokens):
                    rest: list[Content] = [None] * (self.block_size - num_tokens)
                    self.device[target] = self.device[source][:num_tokens] + rest
                case OffloadBlock(block_id, slot):
                    self.host[slot] = list(self.device[block_id])
                case OnboardBlock(slot, block_id):
                    self.device[block_id] = list(self.host[slot])

    def write(self, sequence: Sequence, start: int, end: int) -> None:
        """What a forward pass over positions [start, end) leaves behind."""
        for position in range(start, end):
            block, slot = divmod(position, self.block_size)
            self.device[sequence.block_ids[block]][slot] = content_at(sequence, position)

    def scribble(self, block_ids: Iterable[int]) -> None:
        """Somebody outside writes into blocks that were given to him."""
        for block_id in block_ids:
            self.device[block_id] = [None] * self.block_size

    def holds(self, sequence: Sequence) -> bool:
        """True if everything that the sequence counts as computed is there."""
        return all(
            self.device[sequence.block_ids[position // self.block_size]][position % self.block_size]
            == content_at(sequence, position)
            for position in range(sequence.num_computed)
        )
