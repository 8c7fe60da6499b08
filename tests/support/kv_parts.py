"""A KV-cache and its sequences, for tests of the KV manager."""

from collections.abc import Sequence

from engine_parts import make_sequence

from segue.cluster.block_hash import KeyScope
from segue.cluster.retention import Retention
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.sequence import Sequence as TokenSequence

B = 4
SCOPE = KeyScope("m", "float32", B, "p")


def make_cache(num_blocks: int = 16, reuse: bool | ReusePolicy = True) -> KVCache:
    return KVCache(BlockPool(num_blocks), B, SCOPE, reuse)


def compute(cache: KVCache, sequence: TokenSequence, end: int | None = None) -> None:
    """The tokens before `end`, or all, have their KV now."""
    run_copies(cache)
    sequence.num_computed = len(sequence.tokens) if end is None else end
    cache.publish(sequence)


def run_copies(cache: KVCache) -> tuple[BlockOperation, ...]:
    copies = cache.take_copies()
    cache.end_copies()
    return copies


def begin(
    cache: KVCache,
    tokens: Sequence[int],
    *,
    retention: Retention | None = None,
    salt: str = "",
    total_tokens: int = 0,
) -> TokenSequence:
    """A sequence that was admitted with nothing promised beyond its tokens."""
    sequence = make_sequence(str(tokens), tokens, 64, salt=salt)
    sequence.retention = retention or Retention()
    assert cache.admit(sequence, total_tokens=total_tokens)
    return sequence


def serve(
    cache: KVCache, tokens: Sequence[int], *, retention: Retention | None = None, salt: str = ""
) -> TokenSequence:
    """A sequence that came, was computed whole and has left."""
    sequence = begin(cache, tokens, retention=retention, salt=salt)
    compute(cache, sequence)
    cache.free(sequence)
    return sequence
