"""Reuse, the admission guarantee and publication, sequence by sequence."""

import pytest
from engine_parts import make_sequence
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.block_hash import KeyScope
from segue.cluster.identity import Peer, WorkerIdentity
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.sequence import Sequence

B = 4
SOURCE = Peer(WorkerIdentity("prefill-0", "aa"), "127.0.0.1:1")


def make_cache(num_blocks: int = 16, reuse: bool = True) -> KVCache:
    return KVCache(BlockPool(num_blocks), B, KeyScope("m", "float32", B, "p"), reuse)


def compute(cache: KVCache, sequence: Sequence) -> None:
    sequence.num_computed = sequence.num_context
    cache.publish(sequence)


def run_copies(cache: KVCache) -> tuple[BlockOperation, ...]:
    copies = cache.take_copies()
    cache.end_copies()
    return copies


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
