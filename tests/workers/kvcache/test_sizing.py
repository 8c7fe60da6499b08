"""Bytes and tokens to blocks: which limit wins, how it is rounded, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import ConfigurationError
from segue.workers.kvcache.sizing import BlockSize, CacheSize, host_slots, share_of, size_cache

BLOCK = BlockSize(tokens=16, num_bytes=1000)


@pytest.mark.parametrize(
    ("memory", "max_tokens", "max_bytes", "expected"),
    [
        (10_999, None, 0, CacheSize(10, "memory")),  # rounded down: more is not there
        (10_000, 160, 0, CacheSize(10, "memory")),
        (10_000, 145, 0, CacheSize(10, "memory")),
        (10_000, 144, 0, CacheSize(9, "max_tokens")),
        (10_000, 17, 0, CacheSize(2, "max_tokens")),  # rounded up: 17 tokens do fit
        (10_000, 1, 0, CacheSize(1, "max_tokens")),
        (10_000, None, 3_999, CacheSize(3, "max_bytes")),
        (10_000, 16, 3_999, CacheSize(1, "max_tokens")),
    ],
)
def test_the_smallest_limit_wins(
    memory: int, max_tokens: int | None, max_bytes: int, expected: CacheSize
) -> None:
    assert size_cache(BLOCK, memory, max_tokens=max_tokens, max_bytes=max_bytes) == expected


@pytest.mark.parametrize(
    ("memory", "max_tokens", "max_bytes", "said"),
    [
        (999, None, 0, "memory allows 999 bytes"),
        (-5, None, 0, "memory allows 0 bytes"),
        (10_000, 0, 0, "max_tokens allows 0 tokens"),
        (10_000, None, 1, "max_bytes allows 1 bytes"),
    ],
)
def test_no_room_for_one_block_is_said(
    memory: int, max_tokens: int | None, max_bytes: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        size_cache(BLOCK, memory, max_tokens=max_tokens, max_bytes=max_bytes)


def test_a_share_is_taken_of_the_decimal_and_not_of_its_float() -> None:
    assert 100 * 0.29 < 29
    assert share_of(100, 0.29) == 29
    assert share_of(2**60, 0.9) == 2**60 * 9 // 10


@given(st.integers(0, 2**62), st.integers(1, 999))
def test_a_share_is_exact(free: int, thousandths: int) -> None:
    assert share_of(free, thousandths / 1000) == free * thousandths // 1000


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_share_of_nothing_or_of_all_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        share_of(100, fraction)


def test_host_slots() -> None:
    assert host_slots(BLOCK, 0) == 0
    assert host_slots(BLOCK, 2_999) == 2
    with pytest.raises(ConfigurationError, match="less than one block"):
        host_slots(BLOCK, 999)
