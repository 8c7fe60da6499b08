"""A request says what of its KV is worth keeping; prefill and decode worker both heed it."""

import pytest
from worker_pair import BLOCK_SIZE, Node, Pair, worker_pair

from segue.cluster.retention import Retention, RetentionRange

KEPT = list(range(16))
NUM_BLOCKS = 12


def found_again(node: Node) -> int:
    return node.engine.cache.statistics.reused_full


async def crowd_out(pair: Pair) -> None:
    """More prompts than either cache has room for."""
    for first in range(20, 90, 16):
        await pair.ask(range(first, first + 16), 4)


@pytest.mark.parametrize(
    ("retention", "is_kept"),
    [
        (Retention(), False),
        (Retention((RetentionRange(0, None, 90),)), True),
        (Retention((RetentionRange(0, None, 90, duration=1e-6),)), False),  # over at once
    ],
    ids=["default", "kept", "expired"],
)
async def test_a_retained_prefix_survives_where_another_does_not(
    retention: Retention, is_kept: bool
) -> None:
    async with worker_pair(num_blocks=NUM_BLOCKS) as pair:
        first = await pair.ask(KEPT, 4, retention=retention)
        await crowd_out(pair)
        before = found_again(pair.prefill), found_again(pair.decode)
        again = await pair.ask(KEPT, 4)
        assert again.tokens == first.tokens
        after = found_again(pair.prefill), found_again(pair.decode)
        whole = len(KEPT) // BLOCK_SIZE - 1  # at least one token is computed
        if is_kept:
            assert again.cached_tokens >= whole * BLOCK_SIZE
            assert all(b - a >= whole for a, b in zip(before, after, strict=True))
        else:
            assert again.cached_tokens == 0
        await pair.settled()
