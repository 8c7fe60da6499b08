"""The block pool against a naive model: never two states, nothing lost, nothing found wrongly."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segue.workers.kvcache.block_pool import BlockPool, BlockState, OutOfBlocks

NUM_BLOCKS = 6


class PoolMachine(RuleBasedStateMachine):
    """The model remembers owners, leases, landing and content of each block, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners = [0] * NUM_BLOCKS
        self.leases = [0] * NUM_BLOCKS
        self.landing = [False] * NUM_BLOCKS
        self.content: dict[bytes, int] = {}
        self.release_order: list[int] = []  # idle cached blocks, oldest first

    def _idle(self, block: int) -> bool:
        return not (self.owners[block] or self.leases[block])

    def _owned(self) -> list[int]:
        return [b for b in range(NUM_BLOCKS) if self.owners[b] and not self.landing[b]]

    @rule(count=st.integers(0, NUM_BLOCKS), landing=st.booleans())
    def allocate(self, count: int, landing: bool) -> None:
        idle = [b for b in range(NUM_BLOCKS) if self._idle(b)]
        if count > len(idle):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count, landing=landing)
            return
        cached = set(self.content.values())
        blank = [b for b in idle if b not in cached]
        evicted = self.release_order[: max(0, count - len(blank))]
        taken = self.pool.allocate(count, landing=landing)
        assert len(set(taken)) == count and set(taken) <= set(idle)
        assert set(taken) & cached == set(evicted), "the least recently released go first"
        for block in taken:
            self.owners[block] = 1
            self.landing[block] = landing
            if block in self.release_order:
                self.release_order.remove(block)
        self.content = {k: b for k, b in self.content.items() if b not in taken}

    @precondition(lambda self: self._owned())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._owned()))
        self.pool.release((block,))
        self.owners[block] -= 1
        self._note_idle(block)

    def _note_idle(self, block: int) -> None:
        if self._idle(block) and block in self.content.values():
            self.release_order.append(block)

    @precondition(lambda self: self._owned())
    @rule(data=st.data(), key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(self._owned()))
        fresh = key not in self.content and block not in self.content.values()
        same = self.content.get(key) == block
        assert self.pool.publish(block, key) == (fresh or same)
        if fresh:
            self.content[key] = block

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def share(self, key: bytes) -> None:
        block = self.pool.find(key)
        assert block == self.content.get(key)
        if block is not None:
            self.pool.share(block)
            self.owners[block] += 1
            if block in self.release_order:
                self.release_order.remove(block)

    @precondition(lambda self: self._owned())
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._owned()))
        self.pool.lease((block,))
        self.leases[block] += 1

    @precondition(lambda self: any(self.leases))
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        leased = [b for b in range(NUM_BLOCKS) if self.leases[b]]
        block = data.draw(st.sampled_from(leased))
        self.pool.end_lease((block,))
        self.leases[block] -= 1
        self._note_idle(block)

    @precondition(lambda self: any(self.landing))
    @rule(data=st.data(), arrives=st.booleans())
    def end_landing(self, data: st.DataObject, arrives: bool) -> None:
        block = data.draw(st.sampled_from([b for b in range(NUM_BLOCKS) if self.landing[b]]))
        self.landing[block] = False
        if arrives:
            self.pool.land((block,))
        else:
            self.pool.drop_landing((block,))
            self.owners[block] = 0

    @rule()
    def drop_cached(self) -> None:
        dropped = self.pool.drop_cached()
        assert dropped == len(self.release_order)
        gone = set(self.release_order)
        self.content = {k: b for k, b in self.content.items() if b not in gone}
        self.release_order.clear()

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        published = set(self.content.values())
        for block in range(NUM_BLOCKS):
            if self.landing[block]:
                expected = BlockState.LANDING
            elif self.owners[block]:
                expected = BlockState.OWNED
            elif self.leases[block]:
                expected = BlockState.LEASED
            else:
                expected = BlockState.CACHED if block in published else BlockState.FREE
            assert self.pool.state(block) is expected


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_wrong_transitions_are_refused() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1, landing=True)
    with pytest.raises(ValueError, match="landing"):
        pool.release((block,))
    with pytest.raises(ValueError, match="only owned"):
        pool.publish(block, b"k")
    with pytest.raises(ValueError, match="only owned"):
        pool.lease((block,))
    pool.land((block,))
    pool.release((block,))
    with pytest.raises(ValueError, match="not owned"):
        pool.release((block,))
    with pytest.raises(ValueError, match="not leased"):
        pool.end_lease((block,))
    with pytest.raises(ValueError, match="no content"):
        pool.share(block)
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)
