"""The registry against a model of it: lives, silence, and who may come back."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from registry_parts import CONTROL, life, registered, registration, status

from segue.cluster.errors import StaleReference
from segue.cluster.fleet import DeathCause, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.registry import Registry
from segue.cluster.worker_status import UsualAnswer


def state_of(registry: Registry, identity: WorkerIdentity) -> WorkerState:
    view = registry.newest(identity.worker_id)
    assert view is not None and view.identity == identity
    return view.state


def test_life_of_a_worker() -> None:
    registry, me = Registry(CONTROL, "controller"), life(1)
    registry.expect(me, "decode", "decode", 0.0)
    assert state_of(registry, me) is WorkerState.STARTING
    assert not registry.beat(me, status(me), 1.0)  # must register first
    registry.tick(100.0)
    assert state_of(registry, me) is WorkerState.STARTING  # its launcher judges it
    assert registry.register(registration(me), 100.0).accepted
    registry.tick(101.9)
    assert state_of(registry, me) is WorkerState.READY
    registry.tick(102.0)
    assert state_of(registry, me) is WorkerState.SUSPECT
    assert registry.beat(me, status(me), 105.0)
    assert state_of(registry, me) is WorkerState.READY
    registry.disconnect(me, 105.1)
    assert state_of(registry, me) is WorkerState.SUSPECT
    registry.tick(114.9)
    assert state_of(registry, me) is WorkerState.SUSPECT
    registry.tick(115.0)
    assert state_of(registry, me) is WorkerState.DEAD
    assert not registry.beat(me, status(me), 116.0)
    assert not registry.register(registration(me), 116.0).accepted
    with pytest.raises(StaleReference):
        registry.expect(me, "decode", "decode", 117.0)


def test_new_life_supersedes_the_old_one_for_good() -> None:
    old, new = life(1), life(2)
    registry = registered(old)
    assert registry.register(registration(new), 1.0).accepted
    assert state_of(registry, new) is WorkerState.READY
    assert not registry.beat(old, status(old), 2.0)
    assert not registry.register(registration(old), 2.0).accepted
    registry.disconnect(old, 3.0)
    registry.bury(old, "late news of the old life", 3.0)
    assert state_of(registry, new) is WorkerState.READY


def test_difference_in_fingerprint_is_named_and_does_not_harm_the_fleet() -> None:
    first, odd = life(1, "decode-0"), life(1, "decode-1")
    registry = registered(first)
    verdict = registry.register(registration(odd, dtype="float16"), 1.0)
    assert not verdict.accepted
    assert verdict.reason == "refused: dtype is float16, the fleet's is float32"
    missing = registry.register(registration(odd, layout="2"), 1.0)
    assert missing.reason == "refused: layout is 2, the fleet's is None"
    assert [w.identity for w in registry.snapshot((), 1.0).ready_workers()] == [first]
    registry.bury(first, "gone", 2.0)  # the fleet is empty: whoever comes first sets the tone
    assert registry.register(registration(odd, dtype="float16"), 3.0).accepted


def test_expected_worker_with_another_fingerprint_is_dead_with_the_reason() -> None:
    first, odd = life(1, "decode-0"), life(1, "decode-1")
    registry = registered(first)
    registry.expect(odd, "decode", "decode", 0.0)
    registry.register(registration(odd, block_size="32"), 1.0)
    view = registry.newest("decode-1")
    assert view and view.state is WorkerState.DEAD and "block_size is 32" in view.reason


def test_stalled_is_suspect_though_it_beats_and_draining_stays() -> None:
    me = life(1)
    registry = registered(me)
    assert registry.beat(me, status(me, "stalled", 20.0), 1.0)
    view = registry.newest("decode-0")
    assert view and view.state is WorkerState.SUSPECT
    assert view.reason == "stalled: the engine thread sleeps"
    registry.beat(me, status(me), 2.0)
    assert state_of(registry, me) is WorkerState.READY
    registry.drain(me, "scaled down", 3.0)
    registry.beat(me, status(me), 4.0)
    registry.register(registration(me), 5.0)
    assert state_of(registry, me) is WorkerState.DRAINING
    registry.tick(15.0)
    assert state_of(registry, me) is WorkerState.DEAD


def lives(registry: Registry) -> WorkerView:
    (view,) = registry.snapshot((), 1000.0).workers
    return view


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize(
    ("condition", "stuck_seconds", "reason", "cause"),
    [
        ("stalled", 29.9, "stalled: the engine thread sleeps", None),
        ("stalled", 30.0, "wedged: the engine thread sleeps", DeathCause.WEDGED),
        ("failed", 0.0, "failed: the engine thread sleeps", DeathCause.FAILED),
    ],
)
def test_who_beats_but_will_not_move_again_is_dead(
    draining: bool, condition: str, stuck_seconds: float, reason: str, cause: DeathCause | None
) -> None:
    me = life(1)
    registry = registered(me)
    if draining:
        registry.drain(me, "scaled down", 0.5)
    beaten = registry.beat(me, status(me, condition, stuck_seconds), 1.0)
    view = lives(registry)
    if cause is None:
        assert beaten and view.state is not WorkerState.DEAD
        assert view.reason == ("scaled down" if draining else reason)
        return
    assert not beaten and view.state is WorkerState.DEAD and view.reason == reason
    assert view.last_end == reason and view.deaths == {cause: 1} and view.restarts == 0
    assert not registry.register(registration(me), 2.0).accepted, "what is dead stays dead"


def test_a_silent_worker_that_beats_again_stalled_says_so() -> None:
    me = life(1)
    registry = registered(me)
    registry.tick(2.0)
    registry.beat(me, status(me, "stalled", 5.0), 3.0)
    assert lives(registry).reason.startswith("stalled")
    changes = registry.changes
    registry.beat(me, status(me, "stalled", 6.0), 4.0)
    assert registry.changes == changes, "it was told already"


def test_ended_lives_are_counted_by_cause_and_the_last_one_explained() -> None:
    registry = registered(life(1))
    registry.register(registration(life(1)), 0.5)  # no new life
    registry.tick(20.0)
    assert lives(registry).deaths == {DeathCause.SILENT: 1}
    registry.expect(life(2), "decode", "decode", 21.0)
    assert lives(registry).restarts == 1
    registry.bury(life(2), "no such device", 22.0, DeathCause.NOT_STARTED)
    registry.bury(life(2), "told twice", 22.0)
    registry.expect(life(3), "decode", "decode", 23.0)
    registry.register(registration(life(3)), 24.0)
    registry.register(registration(life(4)), 25.0)
    view = lives(registry)
    assert view.restarts == 3 and view.last_end == "another life took its place"
    assert view.deaths == {
        DeathCause.SILENT: 1,
        DeathCause.NOT_STARTED: 1,
        DeathCause.REPLACED: 1,
    }
    registry.bury(life(4), "gone", 26.0)
    registry.forget("decode-0")
    assert registry.snapshot((), 27.0).workers == ()


def test_silence_of_our_own_making_is_excused_and_only_that() -> None:
    me = life(1)
    registry = registered(me)
    registry.excuse(100.0)
    registry.tick(101.0)
    assert state_of(registry, me) is WorkerState.READY
    registry.tick(100.0 + CONTROL.suspect_after_s)
    assert state_of(registry, me) is WorkerState.SUSPECT
    registry.tick(100.0 + CONTROL.dead_after_s)
    assert state_of(registry, me) is WorkerState.DEAD


def test_what_answers_taught_outlives_the_workers_and_is_told_to_the_next() -> None:
    first, second = life(1), life(2)
    registry = registered(first)
    usual = {"expected_output_tokens": 90.0}
    for gauges in ({}, usual, usual | {"expected_output_share": 0.5}, usual):
        registry.beat(first, replace(status(first), gauges=gauges), 0.0)
    registry.bury(first, "gone", 0.0, DeathCause.EXITED)
    registry.expect(second, "decode", "decode", 0.0)
    assert registry.usual_answer("decode") == UsualAnswer(90, 0.5)
    assert registry.usual_answer("other") is None


def test_beats_alone_change_nothing_that_routing_must_learn() -> None:
    me = life(1)
    registry = registered(me)
    changes = registry.changes
    for second in range(1, 5):
        registry.beat(me, status(me), float(second))
        registry.tick(float(second))
    assert registry.changes == changes
    registry.disconnect(me, 5.0)
    assert registry.changes == changes + 1


@dataclass(slots=True)
class Seen:
    """What the test itself remembers of one worker_id."""

    lives: list[WorkerIdentity] = field(default_factory=list)
    ended: set[WorkerIdentity] = field(default_factory=set)
    last_beat: float = 0.0


class RegistryMachine(RuleBasedStateMachine):
    ids = st.sampled_from(["prefill-0", "decode-0", "decode-1"])

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(CONTROL, "controller")
        self.now = 0.0
        self.seen: dict[str, Seen] = {}
        self.sequence = 0
        self.judged_at = 0.0

    def any_life(self, worker_id: str, data: st.DataObject) -> WorkerIdentity | None:
        lives = self.seen.setdefault(worker_id, Seen()).lives
        return data.draw(st.sampled_from(lives)) if lives else None

    def note(self) -> None:
        """Lives that are not the newest, or are dead, have ended for good."""
        for worker_id, seen in self.seen.items():
            view = self.registry.newest(worker_id)
            seen.ended |= {
                known
                for known in seen.lives
                if view and (view.identity != known or view.state is WorkerState.DEAD)
            }

    @rule(worker_id=ids)
    def launch(self, worker_id: str) -> None:
        seen = self.seen.setdefault(worker_id, Seen())
        seen.lives.append(WorkerIdentity(worker_id, str(len(seen.lives))))
        self.registry.expect(seen.lives[-1], "decode", "decode", self.now)
        self.note()

    @rule(worker_id=ids, odd=st.booleans(), data=st.data())
    def register(self, worker_id: str, odd: bool, data: st.DataObject) -> None:
        identity = self.any_life(worker_id, data)
        if identity is None:
            return
        ended = identity in self.seen[worker_id].ended
        message = registration(identity, dtype="float16") if odd else registration(identity)
        verdict = self.registry.register(message, self.now)
        assert not (ended and verdict.accepted)
        if verdict.accepted:
            self.seen[worker_id].last_beat = self.now
        self.note()

    @rule(
        worker_id=ids,
        data=st.data(),
        condition=st.sampled_from(["ready", "ready", "ready", "stalled", "failed"]),
        stuck_seconds=st.sampled_from([5.0, 30.0]),
    )
    def beat(
        self, worker_id: str, data: st.DataObject, condition: str, stuck_seconds: float
    ) -> None:
        identity = self.any_life(worker_id, data)
        if identity is None:
            return
        ended = identity in self.seen[worker_id].ended
        told = status(identity, condition, stuck_seconds)
        known = self.registry.beat(identity, told, self.now)
        hopeless = condition == "failed" or (condition == "stalled" and stuck_seconds == 30.0)
        assert not ((ended or hopeless) and known)
        if known:
            self.seen[worker_id].last_beat = self.now
            usual = WorkerState.READY if condition == "ready" else WorkerState.SUSPECT
            assert state_of(self.registry, identity) in (usual, WorkerState.DRAINING)
        self.note()

    @rule(worker_id=ids, data=st.data(), how=st.sampled_from(["disconnect", "bury", "drain"]))
    def harm(self, worker_id: str, data: st.DataObject, how: str) -> None:
        identity = self.any_life(worker_id, data)
        if identity is None:
            return
        before = self.registry.newest(worker_id)
        if how == "disconnect":
            self.registry.disconnect(identity, self.now)
        elif how == "bury":
            self.registry.bury(identity, "proven gone", self.now)
        else:
            self.registry.drain(identity, "asked to", self.now)
        if before and before.identity != identity:  # news of an old life harm nobody
            assert self.registry.newest(worker_id) == before
        self.note()

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.registry.tick(self.now)
        self.judged_at = self.now
        self.note()

    @precondition(lambda self: self.judged_at == self.now)
    @invariant()
    def silence_is_judged(self) -> None:
        """Late ones are spared only while most of those that should beat do not."""
        beating = (WorkerState.READY, WorkerState.SUSPECT, WorkerState.DRAINING)
        silences = []
        for worker in self.registry.snapshot((), self.now).workers:
            silent = self.now - self.seen[worker.identity.worker_id].last_beat
            if worker.state is WorkerState.READY:
                assert silent < CONTROL.suspect_after_s
            if worker.state in beating:
                silences.append(silent)
        num_silent = sum(silent >= CONTROL.suspect_after_s for silent in silences)
        if 2 * num_silent <= len(silences):
            assert all(silent < CONTROL.dead_after_s for silent in silences)

    @invariant()
    def snapshots_are_sound(self) -> None:
        view = self.registry.snapshot((), self.now)
        assert view.sequence > self.sequence
        self.sequence = view.sequence
        ids = [worker.identity.worker_id for worker in view.workers]
        assert len(ids) == len(set(ids))
        for worker in view.workers:
            assert self._is_newest_or_dead(worker)
            if worker.state in (WorkerState.READY, WorkerState.SUSPECT):
                assert worker.peer is not None and worker.pid == 42

    @invariant()
    def every_life_is_counted_once(self) -> None:
        for worker in self.registry.snapshot((), self.now).workers:
            living = worker.state is not WorkerState.DEAD
            assert worker.restarts + 1 == sum(worker.deaths.values()) + living
            assert bool(worker.last_end) == bool(worker.deaths)

    def _is_newest_or_dead(self, worker: WorkerView) -> bool:
        ended = self.seen[worker.identity.worker_id].ended
        return (worker.identity in ended) == (worker.state is WorkerState.DEAD)


RegistryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRegistryMachine = RegistryMachine.TestCase
