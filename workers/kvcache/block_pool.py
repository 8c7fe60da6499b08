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

from collections import deque
from collections.abc import Iterable, Sequence
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


DEFAULT_RETENTION = (DEFAULT_PRIORITY, None)


class BlockPool:
    """`num_blocks` blocks. `generation` names this life of the pool; it changes whenever all
    content is dropped. `now` is the time at which what is released is released."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self.generation = 1
        self.now = 0.0
        self._owners = [0] * num_blocks  # sequences that hold it
        self._known = [False] * num_blocks  # its content is known
        # Of the few blocks that have any; the others are not in here.
        self._leases: dict[int, int] = {}
        self._landing: set[int] = set()
        self._arriving: dict[int, int] = {}  # ordered copies into it that have not run
        self._retention: dict[int, tuple[int, float | None]] = {}  # priority and duration
        self._free = deque(range(num_blocks))
        self._cached = EvictionQueue()
        self._num_held = 0  # neither free nor cached
        self._num_leased = 0  # and owned by nobody

    # -- questions ---------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_leased(self) -> int:
        """Blocks that readers hold and nobody owns."""
        return self._num_leased

    @property
    def num_landing(self) -> int:
        return len(self._landing)

    @property
    def num_available(self) -> int:
        """Blocks that could be handed out: free ones and idle cached ones."""
        return self.num_blocks - self._num_held

    def counts(self) -> dict[BlockState, int]:
        return {
            BlockState.FREE: len(self._free),
            BlockState.OWNED: self._num_held - self._num_leased - len(self._landing),
            BlockState.CACHED: len(self._cached),
            BlockState.LEASED: self._num_leased,
            BlockState.LANDING: len(self._landing),
        }

    def state(self, block_id: int) -> BlockState:
        if block_id in self._landing:
            return BlockState.LANDING
        if self._owners[block_id]:
            return BlockState.OWNED
        if block_id in self._leases:
            return BlockState.LEASED
        return BlockState.CACHED if self._known[block_id] else BlockState.FREE

    def num_holders(self, block_id: int) -> int:
        """Sequences and readers that keep it from being given out."""
        return self._owners[block_id] + self._leases.get(block_id, 0)

    def is_idle(self, block_id: int) -> bool:
        """It counts as available, so taking or sharing it leaves one less."""
        return not self._owners[block_id] and block_id not in self._leases

    def has_content(self, block_id: int) -> bool:
        return self._known[block_id]

    def priority(self, block_id: int) -> int:
        return self._retention.get(block_id, DEFAULT_RETENTION)[0]

    def duration(self, block_id: int) -> float | None:
        return self._retention.get(block_id, DEFAULT_RETENTION)[1]

    def victim(self) -> int | None:
        """The cached block whose content goes first; it stays cached."""
        return self._cached.victim()

    # -- transitions -------------------------------------------------------------------------

    def allocate(self, count: int, *, landing: bool = False) -> list[int]:
        """Take `count` free blocks, those longest free first."""
        free, owners = self._free, self._owners
        if count > len(free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(free)} free")
        taken = [free.popleft() for _ in range(count)]
        for block_id in taken:
            owners[block_id] = 1
        self._num_held += count
        if landing:
            self._landing.update(taken)
        return taken

    def share(self, block_id: int) -> None:
        """One more sequence holds a block: one with known content, or one that is held already."""
        owners = self._owners[block_id]
        if block_id in self._landing or not (owners or self._known[block_id]):
            raise self._refusal(block_id, "it has no content that could be shared")
        if not owners:
            if block_id in self._leases:
                self._num_leased -= 1
            else:
                self._cached.remove(block_id)
                self._num_held += 1
        self._owners[block_id] = owners + 1

    def release(self, block_ids: Iterable[int], *, reuse_first: bool = False) -> None:
        """A sequence lets go. Give a sequence's blocks last to first: suffixes are evicted first.

        A block that is still landing must be landed or dropped first. With `reuse_first`, blocks
        without content are the next to be handed out.
        """
        owners, known = self._owners, self._known
        ordinary = not (self._landing or self._leases or self._retention or reuse_first)
        cached: list[int] = []
        for block_id in block_ids:
            left = owners[block_id] - 1
            if left < 0 or (not ordinary and block_id in self._landing):
                raise self._refusal(block_id, "it is not owned")
            owners[block_id] = left
            if left:
                continue
            if ordinary and known[block_id]:
                cached.append(block_id)
            elif block_id in self._leases:
                self._num_leased += 1
            else:
                self._rest(block_id, reuse_first)
        if cached:
            self._num_held -= len(cached)
            self._cached.add_default(cached)

    def reclaim(self, count: int) -> list[int]:
        """Drop the content of the `count` cached blocks that go first, which are free then."""
        victims = self._cached.take(count)
        known, retention = self._known, self._retention
        for block_id in victims:
            known[block_id] = False
        if retention:
            for block_id in victims:
                retention.pop(block_id, None)
        self._free += victims
        return victims

    def know_content(self, block_id: int) -> None:
        """The content of a block is known from now on and will not change while it is."""
        if block_id in self._landing or not self._owners[block_id] or self._known[block_id]:
            raise self._refusal(block_id, "its content cannot become known")
        self._known[block_id] = True

    def drop_content(self, block_id: int) -> None:
        if not self._known[block_id]:
            raise self._refusal(block_id, "it has no known content")
        self._known[block_id] = False
        if self.is_idle(block_id):
            self._cached.remove(block_id)
            self._num_held += 1
            self._rest(block_id)

    def land(self, block_ids: Iterable[int]) -> None:
        """Landing blocks hold their content now, all at once."""
        for block_id in block_ids:
            if block_id not in self._landing:
                raise self._refusal(block_id, "it is not landing")
            self._landing.remove(block_id)

    def drop_landing(self, block_ids: Iterable[int]) -> None:
        """Landing blocks are given up; their content is never seen. No read may be in flight."""
        for block_id in block_ids:
            self.land((block_id,))
            self.release((block_id,))

    def lease(self, block_ids: Sequence[int]) -> None:
        """A remote reader may read these until `end_lease`. All of them, or none."""
        for block_id in block_ids:
            if block_id in self._landing or not self._owners[block_id]:
                raise self._refusal(block_id, "only owned ones are leased")
            if block_id in self._arriving:
                raise self._refusal(block_id, "it waits for a copy and cannot be leased")
        for block_id in block_ids:
            self._leases[block_id] = self._leases.get(block_id, 0) + 1

    def end_lease(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            left = self._leases.get(block_id, 0) - 1
            if left < 0:
                raise self._refusal(block_id, "it is not leased")
            if left:
                self._leases[block_id] = left
                continue
            del self._leases[block_id]
            if not self._owners[block_id]:
                self._num_leased -= 1
                self._rest(block_id)

    def expect_copy(self, block_id: int) -> None:
        """A copy into this block is ordered: nobody outside may read it until that has run."""
        if block_id in self._landing or not self._owners[block_id]:
            raise self._refusal(block_id, "nothing may be copied into it")
        self._arriving[block_id] = self._arriving.get(block_id, 0) + 1

    def end_copy(self, block_id: int) -> None:
        left = self._arriving.get(block_id, 0) - 1
        if left < 0:
            raise self._refusal(block_id, "it waits for no copy")
        if left:
            self._arriving[block_id] = left
        else:
            del self._arriving[block_id]

    def retain(self, block_id: int, priority: int, duration: float | None) -> None:
        """Set how a held block will be kept, once it is released."""
        if (priority, duration) == DEFAULT_RETENTION:
            self._retention.pop(block_id, None)
        else:
            self._retention[block_id] = priority, duration

    def expire(self, now: float) -> list[int]:
        """Let time pass; returns the cached blocks that fell to the default priority."""
        self.now = now
        moved = self._cached.expire(now)
        for block_id in moved:
            self._retention.pop(block_id, None)
        return moved

    # -- bookkeeping -------------------------------------------------------------------------

    def _rest(self, block_id: int, reuse_first: bool = False) -> None:
        """Nobody holds the block any more: it is cached, or free."""
        self._num_held -= 1
        if self._known[block_id]:
            priority, duration = self._retention.get(block_id, DEFAULT_RETENTION)
            expires_at = None if duration is None else self.now + duration
            self._cached.add(block_id, priority, expires_at)
        else:
            self._retention.pop(block_id, None)
            if reuse_first:
                self._free.appendleft(block_id)
            else:
                self._free.append(block_id)

    def _refusal(self, block_id: int, why: str) -> ValueError:
        return ValueError(f"block {block_id} is {self.state(block_id)}: {why}")

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is in exactly the state it is counted in."""
        actual = dict.fromkeys(BlockState, 0)
        free = set(self._free)
        assert len(free) == len(self._free)
        for block_id in range(self.num_blocks):
            state = self.state(block_id)
            actual[state] += 1
            assert self._owners[block_id] >= 0
            assert (block_id in free) == (state is BlockState.FREE)
            assert (block_id in self._cached) == (state is BlockState.CACHED)
        for block_id in self._landing:
            assert self._owners[block_id] == 1 and not self._known[block_id]
        assert all(count > 0 for count in (*self._leases.values(), *self._arriving.values()))
        assert free.isdisjoint(self._retention)
        assert actual == self.counts()
        assert sum(actual.values()) == self.num_blocks
        self._cached.check_integrity()
