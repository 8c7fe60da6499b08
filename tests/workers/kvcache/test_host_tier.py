"""The host tier: what is moved there, what comes back, what is given up, and in which order."""

import pytest
from engine_parts import make_sequence
from kv_parts import B, begin, compute, make_cache, run_copies, serve

from segue.cluster.retention import Retention, RetentionRange
from segue.workers.kvcache.block_operations import CopyBlock, OffloadBlock, OnboardBlock
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy

ONE, TWO, THREE = [1] * B, [2] * B, [3] * B


def tiered(num_blocks: int, num_slots: int, min_priority: int = 35) -> KVCache:
    return make_cache(
        num_blocks, ReusePolicy(num_host_slots=num_slots, offload_min_priority=min_priority)
    )


def cached(cache: KVCache, tokens: list[int]) -> int:
    return cache.match(make_sequence("?", [*tokens, 99], 1)).num_tokens


def test_a_victim_moves_to_the_host_and_is_still_found() -> None:
    cache = tiered(1, 1)
    serve(cache, ONE)
    second = begin(cache, TWO)
    assert run_copies(cache) == (OffloadBlock(0, 0),)
    assert cache.offloaded_blocks == 1
    assert cached(cache, ONE) == B
    cache.check_integrity([second])


def test_coming_back_is_reuse_and_pushes_another_out() -> None:
    cache = tiered(2, 1)
    serve(cache, ONE)
    serve(cache, TWO)
    serve(cache, THREE)  # ONE is on the host
    run_copies(cache)
    again = begin(cache, [*ONE, 9])
    assert again.num_cached == B
    assert OnboardBlock(0, again.block_ids[0]) in run_copies(cache)
    assert cache.statistics.onboarded == 1
    assert cache.statistics.reused_full == 1
    cache.check_integrity([again])


def test_a_slot_is_read_before_it_is_written_again() -> None:
    """With one slot, what comes back leaves it, and the next victim goes there: in that order."""
    cache = tiered(2, 1)
    for tokens in (ONE, TWO, THREE):
        serve(cache, tokens)
    begin(cache, [*ONE, 9])
    copies = [c for c in run_copies(cache) if not isinstance(c, CopyBlock)]
    onboard = next(i for i, c in enumerate(copies) if isinstance(c, OnboardBlock))
    into_slot = [i for i, c in enumerate(copies) if isinstance(c, OffloadBlock)]
    assert into_slot and copies[onboard] == OnboardBlock(0, copies[onboard].block_id)
    assert onboard < into_slot[-1], "the last to be written into the slot came after the read"


def test_low_priorities_are_not_moved() -> None:
    cache = tiered(1, 1, min_priority=36)
    serve(cache, ONE)
    begin(cache, TWO)
    assert (run_copies(cache), cached(cache, ONE)) == ((), 0)


def test_priority_and_expiry_go_along() -> None:
    cache = tiered(1, 2)
    keep = Retention((RetentionRange(0, None, 80, 10.0),))
    cache.refresh(100.0)
    serve(cache, ONE, retention=keep)
    serve(cache, TWO)  # ONE moves to the host
    serve(cache, THREE)  # TWO follows
    serve(cache, [4] * B)  # one slot is needed: TWO has the lower priority
    assert (cached(cache, ONE), cached(cache, TWO), cached(cache, THREE)) == (B, 0, B)
    cache.refresh(109.9)
    cache.refresh(110.0)  # ONE falls behind THREE
    serve(cache, [5] * B)
    serve(cache, [6] * B)
    assert (cached(cache, ONE), cached(cache, THREE)) == (0, 0)
    assert cached(cache, [5] * B) == B


@pytest.mark.parametrize("tokens", [[*ONE, 9], [*ONE[:3], 9]], ids=["whole", "part"])
def test_what_comes_back_has_the_priority_it_left_with(tokens: list[int]) -> None:
    cache = tiered(2, 2)
    serve(cache, ONE, retention=Retention((RetentionRange(0, None, 80),)))
    cache.free(begin(cache, [7] * (2 * B)))
    assert cache.offloaded_blocks == 1
    back = begin(cache, tokens)
    assert cache.pool.priority(back.block_ids[0]) == 80
    cache.check_integrity([back])


def test_what_expired_on_the_host_comes_back_with_the_default() -> None:
    cache = tiered(2, 2)
    cache.refresh(100.0)
    serve(cache, ONE, retention=Retention((RetentionRange(0, None, 80, 10.0),)))
    cache.free(begin(cache, [7] * (2 * B)))
    cache.refresh(109.9)
    assert cache.snapshot().blocks[0].priority == 80
    cache.refresh(110.0)
    assert cache.snapshot().blocks[0].priority == 35
    back = begin(cache, [*ONE, 9])
    assert cache.pool.priority(back.block_ids[0]) == 35


def test_what_lies_below_a_lost_slot_is_lost_too() -> None:
    cache = tiered(3, 1)
    serve(cache, [*ONE, *TWO], retention=Retention((RetentionRange(B, None, 100),)))
    holder = begin(cache, [7] * (2 * B))  # ONE moves to the host, TWO stays: it is worth more
    assert run_copies(cache) == (OffloadBlock(0, 0),)
    compute(cache, holder)
    cache.free(holder)
    serve(cache, [8] * (2 * B))
    assert cached(cache, [*ONE, *TWO]) == 0, "without ONE nobody can use TWO"
    cache.check_integrity([])


def test_what_lost_its_parent_on_the_way_to_the_host_is_not_moved() -> None:
    cache = tiered(2, 1)
    serve(cache, [*ONE, *TWO], retention=Retention((RetentionRange(B, None, 100),)))
    one = begin(cache, [7] * B)  # ONE moves to the host
    run_copies(cache)
    other = begin(cache, [8] * B)  # TWO would follow, but the slot that it needs is ONE's
    assert (run_copies(cache), cache.offloaded_blocks) == ((), 0)
    cache.check_integrity([one, other])


def test_content_that_is_computed_again_leaves_the_host() -> None:
    cache = tiered(4, 2)
    early = begin(cache, ONE)
    late = begin(cache, ONE)
    compute(cache, early)
    cache.free(early)
    filler = begin(cache, [5] * (3 * B))
    assert (len(filler.block_ids), cache.offloaded_blocks) == (3, 1)
    compute(cache, late)  # computed side by side; its own block is the one to find now
    assert cache.offloaded_blocks == 0
    assert cache.match(make_sequence("b", [*ONE, 9], 1)).live_full_blocks == 1
    cache.check_integrity([late, filler])


def test_a_part_on_the_host_is_copied_from_there_and_stays() -> None:
    cache = tiered(1, 2)
    serve(cache, ONE)
    serve(cache, TWO)
    part = begin(cache, [1, 1, 9])
    assert part.num_cached == 2
    assert run_copies(cache)[-1] == OnboardBlock(0, 0)
    cache.check_integrity([part])
    cache.free(part)
    assert cached(cache, ONE) == B


def test_landing_blocks_take_the_room_of_offloaded_ones_only_after_the_copy() -> None:
    cache = tiered(1, 1)
    serve(cache, ONE)
    landing = make_sequence("l", TWO, 1)
    assert cache.admit(landing, landing=True, total_tokens=0)
    assert cache.landing_blocks(landing) == [0]
    assert cache.take_copies() == (OffloadBlock(0, 0),), "to run before anybody is told of 0"
    cache.end_copies()


def test_failed_copies_take_the_trust_in_all_content() -> None:
    cache = tiered(3, 2)
    serve(cache, ONE)
    serve(cache, TWO)
    serve(cache, THREE)
    begin_all = begin(cache, [9] * (2 * B))
    run_copies(cache)
    back = begin(cache, [*ONE[:2], 8])
    generation = cache.pool.generation
    cache.take_copies()
    assert cache.abandon_copies([begin_all, back]) == [back]
    assert cache.pool.generation == generation + 1
    assert cached(cache, ONE) == cached(cache, THREE) == 0
    cache.free(back)
    assert cached(cache, ONE[:2]) == 0, "what it was given is not published"
    cache.check_integrity([begin_all])


def test_a_tier_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        ReusePolicy(num_host_slots=-1)
