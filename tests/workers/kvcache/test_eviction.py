"""Who goes first: priority, then release; expiry falls to the default; never queued twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segue.workers.kvcache.eviction import EvictionQueue


def test_the_longest_released_goes_first_and_a_lookup_does_not_refresh() -> None:
    queue = EvictionQueue()
    for item in (3, 1, 2):
        queue.add(item, 35)
    assert 3 in queue and queue.victim() == 3
    queue.remove(3)
    queue.add(3, 35)
    assert list(queue) == [1, 2, 3]


def test_the_lowest_priority_goes_first() -> None:
    queue = EvictionQueue()
    for item, priority in ((0, 80), (1, 35), (2, 5), (3, 100), (4, 0), (5, 5)):
        queue.add(item, priority)
    assert list(queue) == [4, 2, 5, 1, 0, 3]


def test_what_expires_falls_to_the_back_of_the_default() -> None:
    queue = EvictionQueue()
    queue.add(0, 80, expires_at=10.0)
    queue.add(1, 5, expires_at=20.0)
    queue.add(2, 35)
    assert queue.expire(9.9) == []
    assert queue.expire(10.0) == [0]
    assert list(queue) == [1, 2, 0]
    assert queue.expire(20.0) == [1]
    assert list(queue) == [2, 0, 1]


def test_an_item_is_not_queued_twice() -> None:
    queue = EvictionQueue()
    queue.add(7, 35)
    with pytest.raises(ValueError, match="queued already"):
        queue.add(7, 80)
    queue.remove(7)
    with pytest.raises(KeyError):
        queue.remove(7)
    assert (len(queue), queue.victim()) == (0, None)


def test_expiries_that_were_cancelled_do_not_pile_up() -> None:
    queue = EvictionQueue()
    for round_ in range(2000):
        queue.add(0, 80, expires_at=1e6 + round_)
        queue.remove(0)
    queue.check_integrity()
    assert queue.expire(2e6) == []


class QueueMachine(RuleBasedStateMachine):
    """Against a list that is sorted anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = EvictionQueue()
        self.model: list[tuple[int, int, int, float | None]] = []  # priority, turn, item, expiry
        self.turn = 0
        self.now = 0.0

    @rule(
        item=st.integers(0, 9),
        priority=st.sampled_from([0, 34, 35, 36, 100]),
        duration=st.one_of(st.none(), st.integers(1, 5)),
    )
    def add_or_remove(self, item: int, priority: int, duration: int | None) -> None:
        if item in self.queue:
            self.queue.remove(item)
            self.model = [entry for entry in self.model if entry[2] != item]
            return
        expires_at = None if duration is None else self.now + duration
        self.queue.add(item, priority, expires_at)
        self._append(priority, item, None if priority == 35 else expires_at)

    def _append(self, priority: int, item: int, expires_at: float | None) -> None:
        self.turn += 1
        self.model.append((priority, self.turn, item, expires_at))

    @rule(seconds=st.integers(0, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        moved = self.queue.expire(self.now)
        due = {e[2] for e in self.model if e[3] is not None and e[3] <= self.now}
        assert set(moved) == due and len(moved) == len(due)
        self.model = [entry for entry in self.model if entry[2] not in due]
        for item in moved:
            self._append(35, item, None)

    @invariant()
    def agrees(self) -> None:
        self.queue.check_integrity()
        order = [item for _, _, item, _ in sorted(self.model)]
        assert list(self.queue) == order
        assert self.queue.victim() == (order[0] if order else None)


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase
