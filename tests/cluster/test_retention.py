"""Which priority and duration each block of a prompt takes."""

import pytest

from segue.cluster.errors import InvalidRequest
from segue.cluster.retention import BlockRetention, Retention, RetentionRange


@pytest.mark.parametrize(
    ("block_size", "length", "ranges", "priorities"),
    [
        (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, None, None]),
        (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30]),
        (64, 256, [(0, 64, 80), (129, None, 50)], [80, None, None, 50]),
        (64, 256, [(127, 193, 80)], [None, None, 80, 80]),
        (64, 128, [(1, None, 80)], [None, 80]),
    ],
)
def test_a_block_takes_the_range_of_its_first_token(
    block_size: int,
    length: int,
    ranges: list[tuple[int, int | None, int]],
    priorities: list[int | None],
) -> None:
    retention = Retention(tuple(RetentionRange(*item) for item in ranges))
    firsts = range(0, length, block_size)
    assert [retention.of_block(first, length).priority for first in firsts] == priorities


def test_answers_have_a_priority_of_their_own() -> None:
    ranges = (RetentionRange(0, None, 80, 5.0),)
    retention = Retention(ranges, decode_priority=10, decode_duration=2.0)
    assert retention.of_block(12, 13) == BlockRetention(80, 5.0)
    assert retention.of_block(16, 13) == BlockRetention(10, 2.0)
    assert Retention().of_block(16, 13) == BlockRetention(35, None)


@pytest.mark.parametrize(
    "ranges",
    [
        [(5, 5, 80)],
        [(5, 4, 80)],
        [(0, 8, 80), (7, 9, 80)],
        [(8, 9, 80), (0, 4, 80)],
        [(0, None, 80), (9, 10, 80)],
        [(-1, 4, 80)],
        [(0, 4, 101)],
        [(0, 4, -1)],
        [(0, 4, 50, 0.0)],
        [(0, 4, 50, float("nan"))],
    ],
)
def test_ranges_that_do_not_make_sense_are_refused(ranges: list[tuple[int, int, int]]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Retention(tuple(RetentionRange(*item) for item in ranges))
    assert caught.value.param == "kv_cache_retention_config"


def test_the_answers_priority_is_checked_too() -> None:
    with pytest.raises(InvalidRequest):
        Retention(decode_priority=101)
    with pytest.raises(InvalidRequest):
        Retention(decode_duration=-1.0)
