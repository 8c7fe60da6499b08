"""Silence of most of a pool: no mass burial, nobody who is heard dies, no silence lasts."""

import math

from hypothesis import given
from hypothesis import strategies as st
from registry_parts import CONTROL, registration, status

from segue.cluster.fleet import WorkerState
from segue.cluster.identity import WorkerIdentity
from segue.cluster.registry import Registry
from segue.cluster.silence import WINDOW_S, Listened, PoolSilence

SUSPECT, DEAD = CONTROL.suspect_after_s, CONTROL.dead_after_s


def named(number: int, life: int = 1) -> WorkerIdentity:
    return WorkerIdentity(f"decode-{number}", f"life-{life}")


@given(
    size=st.integers(1, 40),
    fallen=st.lists(st.floats(0, 100), max_size=40),
    share=st.floats(0.01, 1),
    step=st.sampled_from([0.5, 1.0, 7.0]),
)
def test_deaths_of_a_pool_that_falls_silent(
    size: int, fallen: list[float], share: float, step: float
) -> None:
    """Worker number i says nothing more from `fallen[i]` on; those beyond the list always beat."""
    control = CONTROL.model_copy(update={"doubtful_deaths_share": share})
    silence = PoolSilence(control)
    quiet_from = dict(enumerate(fallen[:size]))
    allowed = max(1, int(size * share))
    died: dict[int, float] = {}
    patience = max(fallen, default=0) + DEAD + (WINDOW_S + step) * math.ceil(size / allowed)
    now = 0.0
    while now <= patience + step:
        living = [number for number in range(size) if number not in died]
        pool = [
            Listened(named(number), max(0.0, now - quiet_from.get(number, now)))
            for number in living
        ]
        doubtful = silence.is_doubtful(pool)
        condemned = silence.condemned(pool, size, now)
        assert all(one.silent_s >= DEAD for one in condemned)
        late = [one for one in pool if one.silent_s >= DEAD]
        if not doubtful:
            assert len(condemned) == len(late)  # silent on their own account
        spared = [one for one in late if one not in condemned]
        if condemned and spared:
            assert min(c.silent_s for c in condemned) >= max(s.silent_s for s in spared)
        died |= {int(one.identity.worker_id.removeprefix("decode-")): now for one in condemned}
        if doubtful and condemned:
            assert sum(now - at < WINDOW_S for at in died.values()) <= allowed
        now += step
    assert died.keys() == quiet_from.keys()


def fleet(num_decode: int) -> Registry:
    registry = Registry(CONTROL, "controller")
    for number in range(num_decode):
        assert registry.register(registration(named(number)), 0.0).accepted
    return registry


def states(registry: Registry, now: float) -> list[WorkerState]:
    return [worker.state for worker in registry.snapshot((), now).workers]


def test_a_controller_that_hears_nobody_does_not_end_them_all() -> None:
    registry = fleet(8)
    registry.tick(11.0)
    assert states(registry, 11.0).count(WorkerState.DEAD) == 2
    registry.tick(70.0)
    assert states(registry, 70.0).count(WorkerState.DEAD) == 2
    for number in range(8):
        registry.beat(named(number), status(named(number)), 70.5)
    registry.tick(72.0)
    assert states(registry, 72.0).count(WorkerState.READY) == 6  # it hears again: nothing was lost


def test_once_others_are_heard_the_silent_ones_are_replaced_without_delay() -> None:
    registry = fleet(8)
    registry.tick(11.0)
    dead = [w.identity for w in registry.snapshot((), 11.0).workers if w.state == WorkerState.DEAD]
    for former in dead:
        heir = WorkerIdentity(former.worker_id, "life-2")
        assert registry.register(registration(heir), 12.0).accepted
    back = [w.identity for w in registry.snapshot((), 12.0).workers if w.state == "suspect"][:2]
    for identity in back:
        registry.beat(identity, status(identity), 12.0)
    registry.tick(12.5)  # 4 of 8 are heard
    assert states(registry, 12.5).count(WorkerState.DEAD) == 4


def test_a_pool_of_one_is_replaced_as_soon_as_it_is_late() -> None:
    registry = fleet(1)
    registry.tick(DEAD)
    assert states(registry, DEAD) == [WorkerState.DEAD]
