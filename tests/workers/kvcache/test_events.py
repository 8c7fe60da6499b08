"""What is told of the cache, in which order, and what a reader does who missed some of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_parts import SCOPE, B, begin, compute, make_cache, serve

from segue.cluster.block_hash import block_keys, root_key
from segue.cluster.retention import Retention, RetentionRange
from segue.workers.kvcache.events import (
    BlockIndex,
    EventLog,
    Removed,
    Stored,
    StoredBlock,
    Tier,
    Updated,
    replay,
)
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy

ROOT = root_key(SCOPE)


def telling(num_blocks: int, num_slots: int = 0, capacity: int = 100) -> KVCache:
    return make_cache(num_blocks, ReusePolicy(num_host_slots=num_slots, event_capacity=capacity))


def test_a_chain_is_told_at_once_with_parents_and_not_twice() -> None:
    cache = telling(8)
    first = begin(cache, range(10), total_tokens=12)
    compute(cache, first)
    keys = list(block_keys(ROOT, range(12), B))
    blocks = (
        StoredBlock(keys[0], ROOT, Tier.DEVICE, 35),
        StoredBlock(keys[1], keys[0], Tier.DEVICE, 35),
    )
    assert cache.events.read(0).events == (Stored(1, blocks),)
    first.tokens += [10, 11]
    compute(cache, first)
    more = StoredBlock(keys[2], keys[1], Tier.DEVICE, 35)
    assert cache.events.read(1).events == (Stored(2, (more,)),)
    serve(cache, range(12))
    assert cache.events.last_number == 2, "the same tokens again are no news"


def test_pressure_is_told_as_moves_and_as_a_loss() -> None:
    cache = telling(4, num_slots=3)
    serve(cache, range(4 * B))
    before = cache.events.last_number
    keys = list(block_keys(ROOT, range(4 * B), B))
    begin(cache, range(50, 50 + 4 * B))
    told = cache.events.read(before).events
    assert [type(event) for event in told] == [Updated, Updated, Updated, Removed, Updated]
    assert [event.key for event in told if isinstance(event, Updated)] == keys[::-1]
    assert all(e.tier is Tier.HOST for e in told if isinstance(e, Updated))
    assert told[3] == Removed(before + 4, (keys[3],)), "the first on the host makes room"


def test_a_new_priority_is_told_for_each_block() -> None:
    cache = telling(8)
    serve(cache, range(2 * B), retention=Retention((RetentionRange(0, None, 50),)))
    before = cache.events.last_number
    begin(cache, range(2 * B + 1), retention=Retention((RetentionRange(0, None, 10),)))
    told = cache.events.read(before).events
    assert [(type(e), e.priority) for e in told if isinstance(e, Updated)] == [(Updated, 10)] * 2


def test_one_removal_names_all_that_went() -> None:
    cache = telling(4)
    serve(cache, range(3 * B))
    cache.drop_content()
    last = cache.events.read(cache.events.last_number - 1).events[0]
    assert isinstance(last, Removed) and len(last.keys) == 3
    assert replay(cache.events.read(0).events).blocks == {}


def test_a_reader_that_missed_events_is_told_and_resyncs() -> None:
    cache = telling(8, capacity=2)
    for first in range(4):
        serve(cache, [first] * B)
    batch = cache.events.read(0)
    assert batch.gap and [event.number for event in batch.events] == [3, 4]
    with pytest.raises(ValueError, match="follows"):
        BlockIndex().apply(batch.events[0])
    snapshot = cache.snapshot()
    assert (snapshot.number, len(snapshot.blocks)) == (4, 4)
    serve(cache, [9] * B)
    batch = cache.events.read(snapshot.number)
    assert not batch.gap
    assert len(replay(batch.events, snapshot).blocks) == 5


def test_a_reader_of_another_life_has_a_gap() -> None:
    assert EventLog(10).read(5).gap


def test_events_can_be_off() -> None:
    cache = make_cache(8)
    serve(cache, range(B))
    assert not cache.events.is_on
    assert cache.events.last_number == 0


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 14))
def test_a_gap_is_told_exactly_when_something_is_missing(
    capacity: int, count: int, after: int
) -> None:
    log = EventLog(capacity)
    for number in range(count):
        log.removed((bytes([number]),))
    batch = log.read(after)
    assert batch.gap == (after > count or count - after > capacity)
    if not batch.gap:
        assert [event.number for event in batch.events] == list(range(after + 1, count + 1))
