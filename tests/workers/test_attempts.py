"""The table of attempts balances, and an attempt id is used once."""

import pytest
from engine_parts import make_sequence
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.identity import AttemptId
from segue.workers.attempts import MAX_REMEMBERED, Attempts, Running


def running(name: str, number: int = 1) -> Running:
    return Running(make_sequence(name, range(3), 4, attempt=number), abort=lambda reason: None)


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "abort", "forbid"]), st.integers(0, 4))))
def test_it_balances_and_never_takes_one_twice(events: list[tuple[str, int]]) -> None:
    attempts = Attempts(limit=3)
    begun: list[int] = []
    barred: set[int] = set()
    for event, number in events:
        attempt = AttemptId("r", number)
        if event == "begin":
            try:
                attempts.begin(running("r", number))
                assert number not in barred and number not in begun
                begun.append(number)
            except AttemptFailed as error:
                assert error.failure is FailureKind.REFUSED
        elif event == "end":
            if attempts.end(attempt, "stop") is not None:
                barred.add(number)
        elif event == "abort":
            if attempts.get(attempt) is None:
                barred.add(number)
            attempts.abort(attempt, "why not")
        else:
            attempts.forbid(attempt)
            barred.add(number)
        assert attempts.received == sum(attempts.ended.values()) + len(attempts)
        assert len(attempts) <= 3


def test_of_knows_the_very_object() -> None:
    attempts, first = Attempts(4), running("r")
    attempts.begin(first)
    assert attempts.of(first.sequence) is first
    assert attempts.of(running("r").sequence) is None


def test_a_full_table_and_a_draining_worker_refuse_so_that_another_may_take_it() -> None:
    attempts = Attempts(limit=1)
    attempts.begin(running("a"))
    with pytest.raises(AttemptFailed) as full:
        attempts.begin(running("b"))
    attempts.draining = True
    with pytest.raises(AttemptFailed) as draining:
        attempts.begin(running("c"))
    assert full.value.retryable and full.value.failure is FailureKind.BUSY
    assert draining.value.retryable and draining.value.failure is FailureKind.DRAINING


def test_what_it_remembers_is_bounded() -> None:
    attempts = Attempts(limit=4)
    for number in range(MAX_REMEMBERED + 1):
        attempts.forbid(AttemptId("r", number))
    attempts.begin(running("r", 0))  # forgotten
    with pytest.raises(AttemptFailed):
        attempts.begin(running("r", 1))
