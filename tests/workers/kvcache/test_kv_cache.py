"""Reuse, the admission guarantee and publication, sequence by sequence."""

import pytest
from engine_parts import make_sequence
from hypothesis import given
from hypothesis import strategies as st
from kv_parts import SCOPE, B, begin, compute, make_cache, serve

from segue.cluster.block_hash import block_keys, root_key, token_words
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.retention import Retention, RetentionRange
from segue.workers.kvcache.block_pool import BlockState

SOURCE = Peer(WorkerIdentity("prefill-0", "aa"), "127.0.0.1:1")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "blocks", "promised"),
    [
        (1, 1, 1, 0),
        (B - 1, 1, 1, 0),
        (B, 1, 1, 1),  # the last token of an answer never has KV, but is counted
        (B, 2, 1, 1),
        (B + 1, 1, 2, 0),
        (2 * B, B, 2, 1),
        (2 * B, B + 1, 2, 2),
    ],
)
def test_blocks_at_boundaries(prompt: int, max_tokens: int, blocks: int, promised: int) -> None:
    cache = make_cache()
    sequence = make_sequence("r", range(prompt), max_tokens)
    assert cache.admit(sequence)
    assert (len(sequence.block_ids), sequence.promised_blocks) == (blocks, promised)
    cache.free(sequence)
    cache.check_integrity([])


@pytest.mark.parametrize("prompt", [1, B - 1, B, B + 1, 2 * B, 2 * B + 1])
def test_a_full_hit_leaves_a_token_to_compute(prompt: int) -> None:
    cache = make_cache()
    first = make_sequence("a", range(prompt), 1)
    assert cache.admit(first)
    compute(cache, first)
    cache.free(first)
    second = make_sequence("b", range(prompt), 1)
    assert cache.admit(second)
    assert second.num_cached == prompt - 1


def test_salt_isolates_and_equal_salts_share() -> None:
    cache = make_cache()
    first = make_sequence("a", range(9), 1, salt="x")
    assert cache.admit(first)
    compute(cache, first)
    assert cache.match(make_sequence("b", range(9), 1, salt="x")).full_blocks == 2
    assert cache.match(make_sequence("c", range(9), 1, salt="y")).num_tokens == 0
    assert cache.match(make_sequence("d", range(9), 1)).num_tokens == 0


def test_a_sequence_that_runs_is_shared_and_idle_blocks_give_no_credit() -> None:
    cache = make_cache(num_blocks=6)
    running = make_sequence("a", range(12), 4)  # 3 blocks now, 1 promised
    assert cache.admit(running)
    compute(cache, running)
    twin = make_sequence("b", range(12), 4)  # shares 2; 2 more would be needed
    assert cache.admit(twin)
    assert twin.block_ids[:2] == running.block_ids[:2]
    cache.free(running)
    cache.free(twin)
    cached = make_sequence("c", range(12), 12)  # 6 blocks in all; 2 of them are cached, idle
    assert cache.admit(cached)
    assert not cache.admit(make_sequence("d", [50], 1))


def test_landing_blocks_are_not_found_before_they_landed() -> None:
    cache = make_cache()
    landing = make_sequence("a", range(9), 2, source=SOURCE)
    assert cache.admit(landing, landing=True)
    assert cache.match(make_sequence("b", range(9), 2)).num_tokens == 0
    cache.land(landing)
    assert cache.match(make_sequence("b", range(9), 2)).full_blocks == 2


def test_reuse_can_be_turned_off() -> None:
    cache = make_cache(reuse=False)
    first = make_sequence("a", range(9), 1)
    assert cache.admit(first)
    compute(cache, first)
    cache.free(first)
    assert cache.match(make_sequence("b", range(9), 1)).num_tokens == 0


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 39))
def test_a_resumed_attempt_needs_what_the_first_needed(
    prompt: int, max_tokens: int, produced: int
) -> None:
    cache = make_cache(64)
    fresh = make_sequence("a", range(prompt), max_tokens)
    resumed = make_sequence(
        "a", range(prompt), max_tokens, attempt=2, produced=range(min(produced, max_tokens - 1))
    )
    assert cache.final_tokens(fresh) == cache.final_tokens(resumed)


def test_a_duplicate_stays_unpublished_and_is_blank_afterwards() -> None:
    cache = make_cache()
    one, other = begin(cache, range(8)), begin(cache, range(8))
    compute(cache, one)
    compute(cache, other)
    cache.free(one)
    cache.free(other)
    counts = cache.pool.counts()
    assert (counts[BlockState.CACHED], counts[BlockState.FREE]) == (2, 14)


def test_a_prefix_that_was_evicted_meanwhile_is_published_again_by_its_holder() -> None:
    cache = make_cache(4)
    one, other = begin(cache, range(4)), begin(cache, range(4))
    compute(cache, one)
    compute(cache, other)  # its own block stays unpublished
    cache.free(one)
    filler = begin(cache, range(50, 60))  # takes the published block
    assert cache.match(make_sequence("c", range(9), 1)).num_tokens == 0
    cache.free(filler)
    other.tokens += [4, 5, 6, 7]
    cache.extend(other, 8)
    compute(cache, other)
    assert cache.match(make_sequence("c", range(9), 1)).full_blocks == 2
    cache.check_integrity([other])


def test_a_victim_takes_what_is_below_it_along() -> None:
    """A parent of lower priority goes first; nobody could use its children without it."""
    cache = make_cache(3)
    serve(cache, range(2 * B), retention=Retention((RetentionRange(B, None, 90),)))
    filler = begin(cache, range(50, 58))
    assert cache.match(make_sequence("b", range(9), 1)).num_tokens == 0
    assert cache.pool.counts()[BlockState.FREE] == 1
    cache.check_integrity([filler])


def test_a_suffix_goes_before_its_prefix() -> None:
    cache = make_cache(4)
    serve(cache, range(3 * B))
    begin(cache, [50, 51, 52, 53, 54])
    assert cache.match(make_sequence("b", range(13), 1)).num_tokens == 2 * B


def test_reuse_sets_a_priority_only_if_one_is_given_but_always_the_duration() -> None:
    cache = make_cache(4)
    serve(cache, range(B), retention=Retention((RetentionRange(0, None, 80, 5.0),)))
    cache.free(begin(cache, range(B + 1)))  # says nothing: priority 80 stays, the expiry does not
    cache.refresh(100.0)
    assert cache.pool.priority(0) == 80
    cache.free(begin(cache, range(B + 1), retention=Retention((RetentionRange(0, None, 5),))))
    assert cache.pool.priority(0) == 5


def test_statistics_count_what_was_asked_and_found() -> None:
    cache = make_cache()
    serve(cache, range(10))
    warm = cache.statistics.copy()
    sequence = begin(cache, [*range(9), 50, 51, 52, 53])  # [0-3] [4-7] [8] and then new
    later = cache.statistics.since(warm)
    assert (later.queried_tokens, later.reused_tokens) == (13, 9)
    assert (later.reused_full, later.reused_partial, later.missed) == (2, 1, 1)
    assert later.hit_rate == 3 / 4
    cache.extend(sequence, 17)
    assert cache.statistics.since(warm).allocated_for_answers == 1
    assert make_cache().statistics.hit_rate == 0.0


def test_a_match_tells_what_a_scheduler_wants_to_know() -> None:
    cache = make_cache()
    serve(cache, range(2 * B))
    running = begin(cache, range(B + 1))
    other = make_sequence("b", [*range(2 * B), 70, 71, 72, 73, 74], 1)
    match = cache.match(other)
    assert (match.num_tokens, match.full_blocks, match.live_full_blocks) == (2 * B, 2, 1)
    keys = list(block_keys(root_key(SCOPE), other.tokens, B))
    assert [node.key for node in match.nodes] == keys[:2]
    assert cache.unmatched(other, match) == (
        match.nodes[-1],
        token_words(other.tokens[2 * B :][:B]),
    )
    cache.check_integrity([running])


@pytest.mark.parametrize(
    ("prompt", "is_there"), [(B, False), (B + 1, True), (3 * B, True), (1, False)]
)
def test_the_first_unmatched_block_is_one_that_could_be_shared(prompt: int, is_there: bool) -> None:
    cache = make_cache()
    sequence = make_sequence("a", range(prompt), 1)
    expected = (root_key(SCOPE), token_words(range(B))) if is_there else None
    assert cache.unmatched(sequence, cache.match(sequence)) == expected
    serve(cache, range(prompt))
    assert cache.unmatched(sequence, cache.match(sequence)) is None


def test_salts_have_unmatched_blocks_of_their_own() -> None:
    cache = make_cache()
    salted = make_sequence("a", range(9), 1, salt="x")
    plain = make_sequence("b", range(9), 1)
    found = {cache.unmatched(sequence, cache.match(sequence)) for sequence in (salted, plain)}
    assert len(found) == 2 and None not in found
