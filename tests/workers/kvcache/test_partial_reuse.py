"""Blocks that agree in part: which is chosen, what is copied, what is taken over, what is kept."""

import pytest
from engine_parts import make_sequence
from kv_parts import B, begin, compute, make_cache, run_copies, serve

from segue.cluster.retention import Retention, RetentionRange
from segue.workers.kvcache.block_operations import CopyBlock
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.sequence import Sequence


def answered(cache: KVCache) -> Sequence:
    """The prompt 0..8, its answer 9 and 10, of which 10 never had KV: blocks 0, 1 and [8, 9]."""
    first = begin(cache, range(9))
    compute(cache, first)
    first.tokens += [9, 10]
    cache.extend(first, 10)
    compute(cache, first, 10)
    assert first.block_ids == [0, 1, 2]
    cache.free(first)
    return first


def test_the_reference_example_without_copies() -> None:
    cache = make_cache(8, ReusePolicy(copy_on_partial=False))
    answered(cache)
    one = begin(cache, range(10))
    assert one.block_ids == [0, 1, 2], "the idle leaf is taken over"
    assert one.num_cached == 9, "the last token of the prompt is computed"
    compute(cache, one)
    cache.extend(one, 13)
    assert one.block_ids == [0, 1, 2, 3]
    other = begin(cache, range(11))
    assert other.block_ids == [0, 1, 4], "what was taken over is no longer found"
    assert other.num_cached == 8
    short = begin(cache, [0])
    assert short.num_cached == 0
    cache.check_integrity([one, other, short])


def test_the_reference_example_with_copies() -> None:
    cache = make_cache(8)
    answered(cache)
    one = begin(cache, range(10))
    assert one.block_ids == [0, 1, 3], "only [8] of [8, 9] is used, so that stays"
    assert run_copies(cache) == (CopyBlock(2, 3, 1),)
    other = begin(cache, range(11))
    assert other.block_ids == [0, 1, 2], "all of [8, 9] goes on here, so nothing is lost"
    assert (other.num_cached, run_copies(cache)) == (10, ())


def test_a_coincidence_of_one_token_counts() -> None:
    cache = make_cache(8)
    answered(cache)
    zeros = begin(cache, [0] * 9)
    assert zeros.num_cached == 1
    assert run_copies(cache) == (CopyBlock(0, zeros.block_ids[0], 1),)


def test_the_child_that_shares_most_is_chosen() -> None:
    cache = make_cache()
    for tokens in ([1, 2, 3, 4], [1, 2, 9, 9], [1, 8, 8, 8], [7, 7, 7, 7]):
        serve(cache, [*tokens, 50])
    assert cache.match(make_sequence("a", [1, 2, 3, 6, 6], 1)).num_tokens == 3
    assert cache.match(make_sequence("b", [1, 2, 9], 1)).num_tokens == 2
    assert cache.match(make_sequence("c", [1, 9], 1)).num_tokens == 1
    assert cache.match(make_sequence("d", [9, 9], 1)).num_tokens == 0


@pytest.mark.parametrize("state", ["owned", "leased", "parent"])
def test_a_block_in_use_or_with_children_is_never_taken_over(state: str) -> None:
    cache = make_cache(reuse=ReusePolicy(copy_on_partial=state == "parent"))
    first = begin(cache, range(B + 1 if state == "parent" else B))
    compute(cache, first)
    if state == "leased":
        cache.pool.lease(first.block_ids)
    if state != "owned":
        cache.free(first)
    second = begin(cache, [0, 1, 2])
    if state == "parent":
        assert run_copies(cache) == (CopyBlock(0, second.block_ids[0], 2),)
    else:
        assert (second.num_cached, 0 in second.block_ids) == (0, False)


def test_a_copy_is_kept_like_its_source() -> None:
    cache = make_cache()
    source = begin(cache, range(B), retention=Retention((RetentionRange(0, None, 80),)))
    compute(cache, source)
    copy = begin(cache, [0, 1, 2])
    assert run_copies(cache) == (CopyBlock(source.block_ids[0], copy.block_ids[0], 2),)
    assert cache.pool.priority(copy.block_ids[0]) == 80


def test_an_exact_fit_takes_over_what_there_is_no_room_to_copy() -> None:
    """The source would be needed beside all that the sequence takes: nothing else is available."""
    cache = make_cache(3)
    serve(cache, range(3 * B))
    tight = begin(cache, [0, 1, *range(50, 60)])
    assert (tight.num_cached, sorted(tight.block_ids)) == (2, [0, 1, 2])
    assert run_copies(cache) == ()
    cache.check_integrity([tight])


def test_a_part_is_published_only_when_its_sequence_ends() -> None:
    cache = make_cache()
    first = begin(cache, range(6))
    compute(cache, first)
    assert cache.match(make_sequence("b", range(7), 1)).num_tokens == 4
    cache.free(first)
    assert cache.match(make_sequence("b", range(7), 1)).num_tokens == 6


def test_a_part_that_is_known_already_is_not_published_again() -> None:
    cache = make_cache()
    serve(cache, range(8))
    twin = begin(cache, [0, 1, 2, 3, 4, 5, 9])
    compute(cache, twin, 6)
    cache.free(twin)
    assert cache.pool.counts()[BlockState.CACHED] == 2


def test_what_was_taken_back_before_the_end_is_not_published() -> None:
    cache = make_cache()
    sequence = begin(cache, range(11))
    compute(cache, sequence, 6)
    del sequence.tokens[6:]
    cache.rewind(sequence, 6)
    cache.free(sequence)
    assert cache.match(make_sequence("b", range(11), 1)).num_tokens == 6


def test_parts_can_be_turned_off() -> None:
    cache = make_cache(reuse=ReusePolicy(partial=False))
    serve(cache, range(10))
    assert cache.match(make_sequence("a", range(10), 1)).num_tokens == 8
    assert cache.match(make_sequence("a", range(7), 1)).num_tokens == 4
    assert cache.pool.counts()[BlockState.CACHED] == 2


def test_who_receives_a_prompt_reuses_whole_blocks_only() -> None:
    cache = make_cache()
    serve(cache, range(10))
    sequence = make_sequence("b", range(12), 1)
    assert cache.admit(sequence, landing=True)
    assert sequence.num_cached == sequence.num_published * B == 8
    assert len(cache.landing_blocks(sequence)) == 1
