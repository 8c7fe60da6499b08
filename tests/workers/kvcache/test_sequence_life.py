"""A sequence's blocks from admission to its end: promises, growth, pauses, forks, rewinding."""

import pytest
from engine_parts import make_sequence
from kv_parts import B, begin, compute, make_cache, run_copies

from segue.workers.kvcache.block_operations import CopyBlock
from segue.workers.kvcache.block_pool import OutOfBlocks


@pytest.mark.parametrize(
    ("total_tokens", "promised"), [(None, 4), (0, 0), (6, 0), (9, 1), (12, 1), (13, 2)]
)
def test_a_promise_reaches_as_far_as_is_said(total_tokens: int | None, promised: int) -> None:
    cache = make_cache()
    sequence = make_sequence("a", range(6), 18)
    assert cache.admit(sequence, total_tokens=total_tokens)
    assert sequence.promised_blocks == cache.promised_blocks == promised
    cache.extend(sequence, 9)
    assert sequence.promised_blocks == cache.promised_blocks == max(0, promised - 1)
    cache.check_integrity([sequence])


def test_a_promise_is_kept_from_others() -> None:
    cache = make_cache(4)
    assert cache.admit(make_sequence("a", range(4), 8))  # 1 block and 2 more
    assert not cache.admit(make_sequence("b", range(50, 55), 1))
    assert cache.admit(make_sequence("c", range(50, 53), 1))


def test_growth_beyond_all_blocks_raises_and_changes_nothing() -> None:
    cache = make_cache(2)
    sequence = begin(cache, range(B))
    with pytest.raises(OutOfBlocks):
        cache.extend(sequence, 3 * B)
    assert len(sequence.block_ids) == 1
    cache.check_integrity([sequence])


def test_a_paused_sequence_comes_back_with_all_its_tokens() -> None:
    cache = make_cache()
    sequence = make_sequence("a", range(6), 18)
    assert cache.admit(sequence)
    compute(cache, sequence)
    sequence.tokens += [60, 61, 62]
    cache.extend(sequence, 8)
    compute(cache, sequence, 8)
    cache.pause(sequence)
    cache.pause(sequence)
    assert (sequence.block_ids, sequence.num_computed, sequence.promised_blocks) == ([], 0, 0)
    assert cache.promised_blocks == 0
    cache.check_integrity([])
    assert cache.admit(sequence)
    assert sequence.num_cached == 8, "nothing but the last token is computed again"
    cache.check_integrity([sequence])


def test_a_fork_shares_whole_blocks_and_copies_the_rest() -> None:
    cache = make_cache()
    source = begin(cache, range(10))
    compute(cache, source)
    target = make_sequence("b", [*range(10), 77], 4)
    assert cache.fork(source, target)
    assert target.block_ids[:2] == source.block_ids[:2]
    assert target.block_ids[2] != source.block_ids[2]
    assert target.num_computed == target.num_cached == 10
    assert run_copies(cache) == (CopyBlock(source.block_ids[2], target.block_ids[2], 2),)
    cache.check_integrity([source, target])
    cache.free(source)
    cache.free(target)
    cache.check_integrity([])


def test_a_fork_without_room_changes_nothing() -> None:
    cache = make_cache(3)
    source = begin(cache, range(10))
    compute(cache, source)
    before = cache.pool.counts()
    assert not cache.fork(source, make_sequence("b", [*range(10), 77], 1))
    assert cache.pool.counts() == before
    with pytest.raises(ValueError, match="same tokens"):
        cache.fork(source, make_sequence("b", [9, 9], 1))
    with pytest.raises(ValueError, match="same tokens"):
        cache.fork(source, make_sequence("b", [*range(10), 77], 1, salt="x"))


def test_rewound_blocks_are_promised_again_and_reused_first() -> None:
    cache = make_cache()
    sequence = make_sequence("a", range(6), 18)
    assert cache.admit(sequence)
    compute(cache, sequence)
    cache.extend(sequence, 6 + 7)  # drafts
    drafts = sequence.block_ids[2:]
    cache.rewind(sequence, 7)
    assert (len(sequence.block_ids), sequence.promised_blocks) == (2, 4)
    cache.extend(sequence, 6 + 7)
    assert sequence.block_ids[2:] == drafts
    with pytest.raises(ValueError, match="published"):
        cache.rewind(sequence, 3)


def test_blocks_beyond_a_promise_are_given_back_without_making_one() -> None:
    cache = make_cache()
    sequence = begin(cache, range(6), total_tokens=0)
    cache.extend(sequence, 12)
    cache.rewind(sequence, 6)
    assert (len(sequence.block_ids), cache.promised_blocks) == (2, 0)


def test_freeing_twice_is_harmless() -> None:
    cache = make_cache()
    sequence = begin(cache, range(6))
    compute(cache, sequence)
    cache.free(sequence)
    cache.free(sequence)
    cache.check_integrity([])
