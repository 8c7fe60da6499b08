"""How fast a replica that keeps dying is started again."""

from segue.cluster.replica import backoff_seconds


def test_backoff_doubles_to_its_limit() -> None:
    assert [backoff_seconds(n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert backoff_seconds(10_000) == 30
