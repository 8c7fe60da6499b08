"""Owns every device block: which state each is in, and the only code that may change that.

          allocate                     release, content known
   free ------------> owned ------------------------------> cached --(content dropped)--> free
     ^  `-----> landing --land--> owned      lease             ^
     |             |                owned ----------> leased --+  (last lease ends, content known)
     `-------------+------------------------------------'         (content unknown: free)

A block has one state, derived from its counts: landing, else owned (some sequence holds it), else
leased (some reader may still read it), else cached (idle, its content is known), else free. Only
cached blocks are victims, only free ones are handed out. No tensor, no clock. One thread.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from segue.cluster.retention import DEFAULT_PRIORITY
from segue.workers.kvcache.eviction import EvictionQueue


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
    arriving: int = 0  # ordered copies into it that have not run
    landing: bool = False
    has_content: bool = False
    state: BlockState = BlockState.FREE
    priority: int = DEFAULT_PRIORITY
    duration: float | None = None

    def derived_state(self) -> BlockState:
        if self.landing:
            return BlockState.LANDING
        if self.owners:
            return BlockState.OWNED
        if self.leases:
            return BlockState.LEASED
        return BlockState.CACHED if self.has_content else BlockState.FREE


class BlockPool:
    """`num_blocks` blocks. `generation` names this life of the pool; it changes whenever all
    content is dropped. `now` is the time at which what is released is released."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self.generation = 1
        self.now = 0.0
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((i, None) for i in range(num_blocks))
        self._cached = EvictionQueue()
        self._counts = dict.fromkeys(BlockState, 0)
        self._counts[BlockState.FREE] = num_blocks

    # -- questions ---------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_landing(self) -> int:
        return self._counts[BlockState.LANDING]

    @property
    def num_available(self) -> int:
        """Blocks that could be handed out: free ones and idle cached ones."""
        return self._counts[BlockState.FREE] + self._counts[BlockState.CACHED]

    def counts(self) -> dict[BlockState, int]:
        return dict(self._counts)

    def state(self, block_id: int) -> BlockState:
        return self._blocks[block_id].state

    def num_holders(self, block_id: int) -> int:
        """Sequences and readers that keep it from being given out."""
        block = self._blocks[block_id]
        return block.owners + block.leases

    def is_idle(self, block_id: int) -> bool:
        """It counts as available, so taking or sharing it leaves one less."""
        return self._blocks[block_id].state in (BlockState.FREE, BlockState.CACHED)

    def has_content(self, block_id: int) -> bool:
        return self._blocks[block_id].has_content

    def priority(self, block_id: int) -> int:
        return self._blocks[block_id].priority

    def duration(self, block_id: int) -> float | None:
        return self._blocks[block_id].duration

    def victim(self) -> int | None:
        """The cached block whose content goes first; it stays cached."""
        return self._cached.victim()

    # -- transitions -------------------------------------------------------------------------

    def allocate(self, count: int, *, landing: bool = False) -> list[int]:
        """Take `count` free blocks, those longest free first."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        taken: list[int] = []
        state = BlockState.LANDING if landing else BlockState.OWNED
        for _ in range(count):
            block_id, _ = self._free.popitem(last=False)
            block = self._blocks[block_id]
            block.owners, block.landing, block.state = 1, landing, state
            block.priority, block.duration = DEFAULT_PRIORITY, None
            taken.append(block_id)
        self._counts[BlockState.FREE] -= count
        self._counts[state] += count
        return taken

    def share(self, block_id: int) -> None:
        """One more sequence holds a block: one with known content, or one that is held already."""
        block = self._blocks[block_id]
        if block.landing or not (block.has_content or block.owners):
            raise ValueError(f"block {block_id} has no content that could be shared")
        block.owners += 1
        self._settle(block_id, block)

    def release(self, block_ids: Iterable[int], *, reuse_first: bool = False) -> None:
        """A sequence lets go. Give a sequence's blocks last to first: suffixes are evicted first.

        A block that is still landing must be landed or dropped first. With `reuse_first`, blocks
        without content are the next to be handed out.
        """
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.owners < 1 or block.landing:
                raise ValueError(f"block {block_id} is {block.state}, not owned")
            block.owners -= 1
            self._settle(block_id, block)
            if reuse_first and block.state is BlockState.FREE:
                self._free.move_to_end(block_id, last=False)

    def know_content(self, block_id: int) -> None:
        """The content of a block is known from now on and will not change while it is."""
        block = self._blocks[block_id]
        if block.landing or not block.owners or block.has_content:
            raise ValueError(f"block {block_id} is {block.state}; its content cannot become known")
        block.has_content = True

    def drop_content(self, block_id: int) -> None:
        block = self._blocks[block_id]
        if not block.has_content:
            raise ValueError(f"block {block_id} has no known content")
        block.has_content = False
        self._settle(block_id, block)

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
        self._settle(block_id, block)

    def lease(self, block_ids: Sequence[int]) -> None:
        """A remote reader may read these until `end_lease`. All of them, or none."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.landing or not block.owners:
                raise ValueError(f"block {block_id} is {block.state}; only owned ones are leased")
            if block.arriving:
                raise ValueError(f"block {block_id} waits for a copy; it cannot be leased")
        for block_id in block_ids:
            self._blocks[block_id].leases += 1

    def end_lease(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            if not block.leases:
                raise ValueError(f"block {block_id} is not leased")
            block.leases -= 1
            self._settle(block_id, block)

    def expect_copy(self, block_id: int) -> None:
        """A copy into this block is ordered: nobody outside may read it until that has run."""
        block = self._blocks[block_id]
        if block.landing or not block.owners:
            raise ValueError(f"block {block_id} is {block.state}; nothing may be copied into it")
        block.arriving += 1

    def end_copy(self, block_id: int) -> None:
        block = self._blocks[block_id]
        if not block.arriving:
            raise ValueError(f"block {block_id} waits for no copy")
        block.arriving -= 1

    def retain(self, block_id: int, priority: int, duration: float | None) -> None:
        """Set how a held block will be kept, once it is released."""
        block = self._blocks[block_id]
        block.priority, block.duration = priority, duration

    def expire(self, now: float) -> list[int]:
        """Let time pass; returns the cached blocks that fell to the default priority."""
        self.now = now
        moved = self._cached.expire(now)
        for block_id in moved:
            self.retain(block_id, DEFAULT_PRIORITY, None)
        return moved

    # -- bookkeeping -------------------------------------------------------------------------

    def _settle(self, block_id: int, block: _Block) -> None:
        before, after = block.state, block.derived_state()
        if after is before:
            return
        block.state = after
        self._counts[before] -= 1
        self._counts[after] += 1
        if before is BlockState.FREE:
            del self._free[block_id]
        elif before is BlockState.CACHED:
            self._cached.remove(block_id)
        if after is BlockState.FREE:
            self._free[block_id] = None
        elif after is BlockState.CACHED:
            expires_at = None if block.duration is None else self.now + block.duration
            self._cached.add(block_id, block.priority, expires_at)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is in exactly the state it is counted in."""
        actual = dict.fromkeys(BlockState, 0)
        for block_id, block in enumerate(self._blocks):
            actual[block.state] += 1
            assert block.state is block.derived_state()
            assert block.owners >= 0 and block.leases >= 0 and block.arriving >= 0
            assert not (block.landing and (block.has_content or block.owners != 1))
            assert (block_id in self._free) == (block.state is BlockState.FREE)
            assert (block_id in self._cached) == (block.state is BlockState.CACHED)
        assert actual == self._counts
        assert sum(actual.values()) == self.num_blocks
        self._cached.check_integrity()
