"""The KV manager does as much work in a pool of 100,000 blocks as in one of 1,000.

Work is counted in executed lines, which is the same on every machine.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from engine_parts import make_sequence
from kv_parts import SCOPE, B, run_copies

from segue.workers.kvcache.block_pool import BlockPool, BlockState
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy

SMALL, LARGE = 1_000, 100_000


def lines_of(action: Callable[[], object]) -> int:
    """Lines of the KV manager that `action` executes."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if "kvcache" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def filled(num_blocks: int, num_slots: int) -> KVCache:
    """All blocks hold idle content: prompts of 8 blocks with different first tokens."""
    policy = ReusePolicy(num_host_slots=num_slots, event_capacity=100)
    cache = KVCache(BlockPool(num_blocks), B, SCOPE, policy)
    number = 0
    while cache.pool.counts()[BlockState.FREE] >= 8:
        number += 1
        sequence = make_sequence("f", [number] * (8 * B), 1)
        assert cache.admit(sequence, total_tokens=0)
        sequence.num_computed = 8 * B
        cache.publish(sequence)
        cache.free(sequence)
        run_copies(cache)
    return cache


def served(cache: KVCache) -> list[int]:
    """Lines of each operation on a prompt of 64 blocks, half of it cached."""
    half = [5_000_000] * (32 * B)
    first = make_sequence("a", half, 1)
    assert cache.admit(first, total_tokens=0)
    first.num_computed = len(half)
    cache.publish(first)
    cache.free(first)
    second = make_sequence("b", half + [6_000_000] * (32 * B), 9)
    lines = [
        lines_of(lambda: cache.match(second)),
        lines_of(lambda: cache.admit(second, total_tokens=0)),
        lines_of(lambda: run_copies(cache)),
    ]
    assert second.num_cached == len(half)
    second.num_computed = 64 * B
    lines.append(lines_of(lambda: cache.publish(second)))
    second.tokens.append(7)
    lines.append(lines_of(lambda: cache.extend(second, 64 * B + 1)))
    lines.append(lines_of(lambda: cache.pool.lease(second.block_ids[:64])))
    leased = tuple(second.block_ids[:64])
    lines.append(lines_of(lambda: cache.free(second)))
    lines.append(lines_of(lambda: cache.pool.end_lease(leased)))
    lines.append(lines_of(lambda: cache.refresh(1.0)))
    return lines


@pytest.mark.parametrize("num_slots", [0, 500])
def test_the_size_of_the_pool_does_not_tell(num_slots: int) -> None:
    small, large = served(filled(SMALL, num_slots)), served(filled(LARGE, num_slots))
    assert min(small) > 0
    for few, many in zip(small, large, strict=True):
        assert many <= few * 1.05 + 20
