"""Reuse, the admission guarantee and publication, sequence by sequence."""

import pytest
from engine_parts import make_sequence
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segue.cluster.block_hash import KeyScope
from segue.cluster.identity import Peer, WorkerIdentity
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


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "blocks", "promised"),
    [
        (1, 1, 1, 0),  # the last token of an answer never has KV
        (B - 1, 1, 1, 0),
        (B, 1, 1, 0),
        (B, 2, 1, 1),
        (B + 1, 1, 2, 0),
        (2 * B, B + 1, 2, 1),
        (2 * B, B + 2, 2, 2),
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
    assert second.num_cached == (prompt - 1) // B * B < prompt


def test_salt_isolates_and_equal_salts_share() -> None:
    cache = make_cache()
    first = make_sequence("a", range(9), 1, salt="x")
    assert cache.admit(first)
    compute(cache, first)
    assert len(cache.match(make_sequence("b", range(9), 1, salt="x")).block_ids) == 2
    assert not cache.match(make_sequence("c", range(9), 1, salt="y")).block_ids
    assert not cache.match(make_sequence("d", range(9), 1)).block_ids


def test_a_sequence_that_runs_is_shared_and_idle_blocks_give_no_credit() -> None:
    cache = make_cache(num_blocks=6)
    running = make_sequence("a", range(12), 5)  # 3 blocks now, 1 promised
    assert cache.admit(running)
    compute(cache, running)
    twin = make_sequence("b", range(12), 5)  # shares 2; 2 more would be needed
    assert cache.admit(twin)
    assert twin.block_ids[:2] == running.block_ids[:2]
    cache.free(running)
    cache.free(twin)
    cached = make_sequence("c", range(12), 13)  # 6 blocks in all; 2 of them are cached, idle
    assert cache.admit(cached)
    assert not cache.admit(make_sequence("d", [50], 1))


def test_landing_blocks_are_not_found_before_they_landed() -> None:
    cache = make_cache()
    landing = make_sequence("a", range(9), 2, source=SOURCE)
    assert cache.admit(landing, landing=True)
    assert not cache.match(make_sequence("b", range(9), 2)).block_ids
    cache.land(landing)
    assert len(cache.match(make_sequence("b", range(9), 2)).block_ids) == 2


def test_reuse_can_be_turned_off() -> None:
    cache = make_cache(reuse=False)
    first = make_sequence("a", range(9), 1)
    assert cache.admit(first)
    compute(cache, first)
    cache.free(first)
    assert not cache.match(make_sequence("b", range(9), 1)).block_ids


class CacheMachine(RuleBasedStateMachine):
    """Any order of admissions, growth, landings and ends keeps the promise and the balance."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(num_blocks=10)
        self.live: list[Sequence] = []
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=18),
        max_tokens=st.integers(1, 12),
        landing=st.booleans(),
    )
    def admit(self, prompt: list[int], max_tokens: int, landing: bool) -> None:
        self.count += 1
        source = SOURCE if landing else None
        sequence = make_sequence(str(self.count), prompt, max_tokens, source=source)
        before = self.cache.pool.counts()
        if self.cache.admit(sequence, landing=landing):
            assert sequence.num_cached < len(prompt)
            self.live.append(sequence)
        else:
            assert self.cache.pool.counts() == before, "a refusal changes nothing"
            assert self.live or not self.cache.can_ever_fit(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        """Compute, or land, the context; then grow token by token as far as was promised."""
        sequence = data.draw(st.sampled_from(self.live))
        if self.cache.landing_blocks(sequence):
            self.cache.land(sequence)
        elif sequence.num_computed < sequence.num_context:
            compute(self.cache, sequence)
        elif sequence.num_produced + 1 < sequence.request.stop.max_tokens:
            sequence.tokens.append(data.draw(st.integers(0, 1)))
            self.cache.extend(sequence, len(sequence.tokens))
            sequence.num_computed = len(sequence.tokens)
            self.cache.publish(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.cache.free(sequence)

    @invariant()
    def balances(self) -> None:
        self.cache.check_integrity(self.live)
        assert self.cache.promised_blocks <= self.cache.pool.num_available

    @invariant()
    def shared_blocks_hold_equal_tokens(self) -> None:
        content: dict[int, list[int]] = {}
        for sequence in self.live:
            for index in range(sequence.num_computed // B):
                tokens = sequence.tokens[: (index + 1) * B]
                block = sequence.block_ids[index]
                assert content.setdefault(block, tokens) == tokens


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase


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
