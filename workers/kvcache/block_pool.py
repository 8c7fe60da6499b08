"""Owns every KV block: which state each is in, and the only code that may change that.

          allocate                    publish + release
   free ------------> owned ------------------------------> cached --(allocate: evicted)--> owned
     ^  `-----> landing --land--> owned     lease                ^
     |             |                owned ---------> leased -----'  (last lease ends, published)
     `-------------+------------------------------------'           (unpublished: free)

A block has one state, derived from its counts: landing, else owned (some sequence holds it), else
leased (some reader may still read it), else cached (idle, found by its key), else free. No tensor,
no clock. One thread.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class BlockState(StrEnum):
    FREE = "free"
    OWNED = "owned"
    CACHED = "cached"
    LEASED = "leased"
    LANDING = "landing"


class OutOfBlocks(Exception):
    """The caller asked for more than `num_available`: an error of the capacity scheduler."""


@dataclass(slots=True)
class _Block:
    owners: int = 0
    leases: int = 0
    landing: bool = False
    key: bytes | None = None

    @property
    def state(self) -> BlockState:
        if self.landing:
            return BlockState.LANDING
        if self.owners:
            return BlockState.OWNED
        if self.leases:
            return BlockState.LEASED
        return BlockState.FREE if self.key is None else BlockState.CACHED


class BlockPool:
    """`num_blocks` blocks and the index of those whose content is known.

    `generation` names this life of the pool; it changes whenever all content is dropped.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self.generation = 1
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((i, None) for i in range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._by_key: dict[bytes, int] = {}
        self._counts = dict.fromkeys(BlockState, 0)
        self._counts[BlockState.FREE] = num_blocks

    # -- questions ---------------------------------------------------------------------------

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: free ones and idle cached ones."""
        return len(self._free) + len(self._cached)

    def counts(self) -> dict[BlockState, int]:
        return dict(self._counts)

    def state(self, block_id: int) -> BlockState:
        return self._blocks[block_id].state

    def find(self, key: bytes) -> int | None:
        """The block that holds `key`'s content, in whatever state; does not touch the LRU."""
        return self._by_key.get(key)

    def key(self, block_id: int) -> bytes | None:
        return self._blocks[block_id].key

    def is_idle(self, block_id: int) -> bool:
        return self._blocks[block_id].state in (BlockState.FREE, BlockState.CACHED)

    # -- transitions -------------------------------------------------------------------------

    def allocate(self, count: int, *, landing: bool = False) -> list[int]:
        """Take `count` blank blocks: free ones, then the least recently used cached ones."""
        if count > self.num_available:
            raise OutOfBlocks(f"{count} blocks wanted, {self.num_available} available")
        taken: list[int] = []
        for _ in range(count):
            block_id = next(iter(self._free), None)
            if block_id is None:
                block_id = next(iter(self._cached))
                self._unpublish(block_id)
            block = self._blocks[block_id]
            before = block.state
            block.owners = 1
            block.landing = landing
            self._moved(block_id, before)
            taken.append(block_id)
        return taken

    def share(self, block_id: int) -> None:
        """One more sequence holds a block with known content."""
        block = self._blocks[block_id]
        if block.key is None or block.landing:
            raise ValueError(f"block {block_id} has no content that could be shared")
        before = block.state
        block.owners += 1
        self._moved(block_id, before)

    def release(self, block_ids: Iterable[int]) -> None:
        """A sequence lets go. Give a sequence's blocks last to first: suffixes are evicted first.

        A block that is still landing must be landed or dropped first.
        """
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.owners < 1 or block.landing:
                raise ValueError(f"block {block_id} is {block.state}, not owned")
            before = block.state
            block.owners -= 1
            self._moved(block_id, before)

    def publish(self, block_id: int, key: bytes) -> bool:
        """Make a whole, complete block findable. False: another block holds this content."""
        block = self._blocks[block_id]
        if block.landing or not block.owners:
            raise ValueError(f"block {block_id} is {block.state}; only owned blocks are published")
        if block.key is not None or key in self._by_key:
            return block.key == key
        block.key = key
        self._by_key[key] = block_id
        return True

    def land(self, block_ids: Iterable[int]) -> None:
        """Landing blocks hold their content now, all at once."""
        for block_id in block_ids:
            self._stop_landing(block_id)

    def drop_landing(self, block_ids: Iterable[int]) -> None:
        """Landing blocks are given up; their content is never seen. No read may be in flight."""
        for block_id in block_ids:
            self._stop_landing(block_id)
            self.release((block_id,))

    def _stop_landing(self, block_id: int) -> None:
        block = self._blocks[block_id]
        if not block.landing:
            raise ValueError(f"block {block_id} is {block.state}, not landing")
        block.landing = False
        self._moved(block_id, BlockState.LANDING)

    def lease(self, block_ids: Iterable[int]) -> None:
        """A remote reader may read these until `end_lease`."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.landing or not block.owners:
                raise ValueError(f"block {block_id} is {block.state}; only owned ones are leased")
            block.leases += 1

    def end_lease(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            if not block.leases:
                raise ValueError(f"block {block_id} is not leased")
            before = block.state
            block.leases -= 1
            self._moved(block_id, before)

    def drop_cached(self) -> int:
        """Forget all idle content; returns how many blocks that freed."""
        idle = list(self._cached)
        for block_id in idle:
            self._unpublish(block_id)
        return len(idle)

    # -- bookkeeping -------------------------------------------------------------------------

    def _unpublish(self, block_id: int) -> None:
        block = self._blocks[block_id]
        before = block.state
        if block.key is not None:
            del self._by_key[block.key]
            block.key = None
        self._moved(block_id, before)

    def _moved(self, block_id: int, before: BlockState) -> None:
        after = self._blocks[block_id].state
        if after is before:
            return
        self._counts[before] -= 1
        self._counts[after] += 1
        for state, idle in ((BlockState.FREE, self._free), (BlockState.CACHED, self._cached)):
            if before is state:
                del idle[block_id]
            if after is state:
                idle[block_id] = None

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is in exactly the state it is counted in."""
        actual = dict.fromkeys(BlockState, 0)
        for block_id, block in enumerate(self._blocks):
            actual[block.state] += 1
            assert block.owners >= 0 and block.leases >= 0
            assert (block_id in self._free) == (block.state is BlockState.FREE)
            assert (block_id in self._cached) == (block.state is BlockState.CACHED)
            assert block.key is None or self._by_key[block.key] == block_id
        assert actual == self._counts
        assert sum(actual.values()) == self.num_blocks
        assert len(self._by_key) == sum(block.key is not None for block in self._blocks)
