"""Which lives stay connected, against a naive model: nothing in use is ever let go of."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segue.cluster.identity import WorkerIdentity
from segue.workers.kept_lives import KeptLives

MAX_IDLE = 2
IDLE_SECONDS = 10.0
lives = st.builds(WorkerIdentity, st.sampled_from(["a", "b", "c", "d"]), st.sampled_from("xyz"))


class KeptLivesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = KeptLives(MAX_IDLE, IDLE_SECONDS)
        self.kept: dict[WorkerIdentity, float] = {}  # when it was last of use, newest met last
        self.uses: Counter[WorkerIdentity] = Counter()
        self.now = 0.0

    def let_go(self, gone: list[WorkerIdentity]) -> None:
        for life in gone:
            assert not self.uses[life], "in use"
            del self.kept[life]  # it was kept, and is told once

    @rule(seconds=st.sampled_from([1.0, 4.0, 9.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(life=lives)
    def meet(self, life: WorkerIdentity) -> None:
        self.kept.pop(life, None)
        self.kept[life] = self.now
        self.let_go(self.book.meet(life, self.now))
        former = [other for other in self.kept if other.worker_id == life.worker_id]
        assert all(self.uses[other] for other in former if other != life)

    @rule(life=lives)
    def use(self, life: WorkerIdentity) -> None:
        self.uses[life] += 1
        self.book.use(life)

    @rule(life=lives)
    def end_use(self, life: WorkerIdentity) -> None:
        if not self.uses[life]:
            return
        self.uses[life] -= 1
        if life in self.kept:
            self.kept[life] = self.now
        self.let_go(self.book.end_use(life, self.now))

    @rule(named=st.lists(lives, max_size=3, unique_by=lambda life: life.worker_id))
    def hear_of(self, named: list[WorkerIdentity]) -> None:
        others = {
            life
            for life in self.kept
            for alive in named
            if life.worker_id == alive.worker_id and life != alive
        }
        for life in named:
            if life in self.kept:
                self.kept[life] = self.now
        gone = self.book.hear_of(named, self.now)
        assert sorted(gone) == sorted(others), "also those in use: they are dead"
        for life in gone:
            del self.kept[life]

    @rule()
    def expire(self) -> None:
        expected = {
            life
            for life, since in self.kept.items()
            if not self.uses[life] and self.now - since >= IDLE_SECONDS
        }
        gone = self.book.expire(self.now)
        assert set(gone) == expected
        self.let_go(gone)

    @rule(life=lives)
    def drop(self, life: WorkerIdentity) -> None:
        self.book.drop(life)
        self.kept.pop(life, None)

    @invariant()
    def agrees_with_the_model(self) -> None:
        idle = [life for life in self.kept if not self.uses[life]]
        assert len(self.book) == len(self.kept)
        assert self.book.num_idle == len(idle) <= MAX_IDLE
        assert len({life.worker_id for life in idle}) == len(idle)


KeptLivesMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None
)
TestKeptLives = KeptLivesMachine.TestCase


def test_the_idle_one_that_was_of_use_last_stays() -> None:
    book = KeptLives(MAX_IDLE, IDLE_SECONDS)
    first, second, third = (WorkerIdentity(name, "x") for name in "abc")
    assert book.meet(first, 0.0) == book.meet(second, 1.0) == []
    book.use(first)
    assert book.meet(third, 2.0) == []
    assert book.end_use(first, 3.0) == [second]
    assert book.expire(12.0) == [third] and book.expire(13.0) == [first]
