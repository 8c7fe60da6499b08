"""The block pool against a naive model: never two states, nothing lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segue.workers.kvcache.block_pool import BlockPool, BlockState, OutOfBlocks

NUM_BLOCKS = 6


class PoolMachine(RuleBasedStateMachine):
    """The model remembers owners, leases, expected copies, landing and content of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners = [0] * NUM_BLOCKS
        self.leases = [0] * NUM_BLOCKS
        self.copies = [0] * NUM_BLOCKS
        self.landing = [False] * NUM_BLOCKS
        self.content = [False] * NUM_BLOCKS
        self.idle_order: list[int] = []  # cached blocks, longest idle first

    def _expected(self, block: int) -> BlockState:
        if self.landing[block]:
            return BlockState.LANDING
        if self.owners[block]:
            return BlockState.OWNED
        if self.leases[block]:
            return BlockState.LEASED
        return BlockState.CACHED if self.content[block] else BlockState.FREE

    def _those(self, *states: BlockState) -> list[int]:
        return [b for b in range(NUM_BLOCKS) if self._expected(b) in states]

    def _draw(self, data: st.DataObject, blocks: list[int]) -> int | None:
        return data.draw(st.sampled_from(blocks)) if blocks else None

    def _note_idle(self, block: int) -> None:
        cached = self._expected(block) is BlockState.CACHED
        if cached and block not in self.idle_order:
            self.idle_order.append(block)
        elif not cached and block in self.idle_order:
            self.idle_order.remove(block)

    @rule(count=st.integers(0, NUM_BLOCKS), landing=st.booleans())
    def allocate(self, count: int, landing: bool) -> None:
        free = self._those(BlockState.FREE)
        if count > len(free):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count, landing=landing)
            return
        taken = self.pool.allocate(count, landing=landing)
        assert len(set(taken)) == count and set(taken) <= set(free)
        for block in taken:
            self.owners[block] = 1
            self.landing[block] = landing

    @rule(data=st.data(), reuse_first=st.booleans())
    def release(self, data: st.DataObject, reuse_first: bool) -> None:
        block = self._draw(data, self._those(BlockState.OWNED))
        if block is None:
            return
        self.pool.release((block,), reuse_first=reuse_first)
        self.owners[block] -= 1
        self._note_idle(block)
        if reuse_first and self._expected(block) is BlockState.FREE:
            assert self.pool.allocate(1) == [block]
            self.owners[block] = 1

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        usable = [b for b in range(NUM_BLOCKS) if self.owners[b] or self.content[b]]
        block = self._draw(data, [b for b in usable if not self.landing[b]])
        if block is not None:
            self.pool.share(block)
            self.owners[block] += 1
            self._note_idle(block)

    @rule(data=st.data())
    def know_content(self, data: st.DataObject) -> None:
        blank = [b for b in self._those(BlockState.OWNED) if not self.content[b]]
        if (block := self._draw(data, blank)) is not None:
            self.pool.know_content(block)
            self.content[block] = True

    @rule(data=st.data())
    def drop_content(self, data: st.DataObject) -> None:
        known = [b for b in range(NUM_BLOCKS) if self.content[b]]
        if (block := self._draw(data, known)) is not None:
            self.pool.drop_content(block)
            self.content[block] = False
            self._note_idle(block)

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        still = [b for b in self._those(BlockState.OWNED) if not self.copies[b]]
        if (block := self._draw(data, still)) is not None:
            self.pool.lease((block,))
            self.leases[block] += 1

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        leased = [b for b in range(NUM_BLOCKS) if self.leases[b]]
        if (block := self._draw(data, leased)) is not None:
            self.pool.end_lease((block,))
            self.leases[block] -= 1
            self._note_idle(block)

    @rule(data=st.data())
    def expect_copy(self, data: st.DataObject) -> None:
        if (block := self._draw(data, self._those(BlockState.OWNED))) is not None:
            self.pool.expect_copy(block)
            self.copies[block] += 1

    @rule(data=st.data())
    def end_copy(self, data: st.DataObject) -> None:
        copied = [b for b in range(NUM_BLOCKS) if self.copies[b]]
        if (block := self._draw(data, copied)) is not None:
            self.pool.end_copy(block)
            self.copies[block] -= 1

    @rule(data=st.data(), arrives=st.booleans())
    def end_landing(self, data: st.DataObject, arrives: bool) -> None:
        block = self._draw(data, self._those(BlockState.LANDING))
        if block is None:
            return
        self.landing[block] = False
        if arrives:
            self.pool.land((block,))
        else:
            self.pool.drop_landing((block,))
            self.owners[block] = 0

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        expected = [self._expected(block) for block in range(NUM_BLOCKS)]
        assert [self.pool.state(block) for block in range(NUM_BLOCKS)] == expected
        idle = [s for s in expected if s in (BlockState.FREE, BlockState.CACHED)]
        assert self.pool.num_available == len(idle)
        assert self.pool.victim() == (self.idle_order[0] if self.idle_order else None)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_wrong_transitions_are_refused() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1, landing=True)
    with pytest.raises(ValueError, match="landing"):
        pool.release((block,))
    with pytest.raises(ValueError, match="cannot become known"):
        pool.know_content(block)
    with pytest.raises(ValueError, match="only owned"):
        pool.lease((block,))
    with pytest.raises(ValueError, match="nothing may be copied"):
        pool.expect_copy(block)
    pool.land((block,))
    pool.release((block,))
    with pytest.raises(ValueError, match="not owned"):
        pool.release((block,))
    with pytest.raises(ValueError, match="not leased"):
        pool.end_lease((block,))
    with pytest.raises(ValueError, match="waits for no copy"):
        pool.end_copy(block)
    with pytest.raises(ValueError, match="no known content"):
        pool.drop_content(block)
    with pytest.raises(ValueError, match="no content"):
        pool.share(block)
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)
    assert pool.counts()[BlockState.FREE] == 2, "no count has drifted"


def test_a_lease_is_for_all_blocks_or_for_none() -> None:
    pool = BlockPool(2)
    one, other = pool.allocate(2)
    pool.release((other,))
    with pytest.raises(ValueError, match="only owned"):
        pool.lease((one, other))
    pool.release((one,))
    assert pool.counts()[BlockState.FREE] == 2


def test_a_block_that_waits_for_a_copy_is_not_leased() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.expect_copy(block)
    pool.release((block,))
    assert pool.allocate(1) == [block], "whoever writes into it does so after the copy"
    with pytest.raises(ValueError, match="waits for a copy"):
        pool.lease((block,))
    pool.end_copy(block)
    pool.lease((block,))


def test_priority_and_expiry_decide_the_victim() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, priority, duration in zip(blocks, (80, 35, 10), (5.0, None, None), strict=True):
        pool.know_content(block)
        pool.retain(block, priority, duration)
    pool.expire(100.0)
    pool.release(blocks)
    order = []
    for now in (104.9, 105.0, 105.0):
        pool.expire(now)
        order.append(pool.victim())
        assert order[-1] is not None
        pool.drop_content(order[-1])
    assert order == [blocks[2], blocks[1], blocks[0]]


def test_claiming_a_block_again_cancels_its_expiry() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.know_content(block)
    pool.retain(block, 80, 5.0)
    pool.release((block,))
    pool.share(block)
    assert pool.expire(10.0) == []
    pool.release((block,))  # time counts from this release
    assert pool.expire(14.9) == []
    assert pool.expire(15.0) == [block]
    assert pool.priority(block) == 35
