"""Whom each worker is told to meet before it must read from them."""

from collections import Counter
from collections.abc import Iterable

from registry_parts import CONTROL, SAME, life, status

from segue.cluster.config.pool import Role
from segue.cluster.fleet import DeathCause, Registration, Sources
from segue.cluster.identity import Peer
from segue.cluster.registry import MAX_NEIGHBOURS, Registry


def fleet(**roles: Role) -> Registry:
    registry = Registry(CONTROL, "controller")
    for name, role in roles.items():
        identity = life(1, name)
        peer = Peer(identity, f"{name}:7")
        assert registry.register(Registration(peer, role, role, SAME, 42), 0.0).accepted
        registry.beat(identity, status(identity), 0.0)
    return registry


def names(peers: Iterable[Peer]) -> list[str]:
    return [peer.identity.worker_id for peer in peers]


def test_workers_meet_whom_they_may_have_to_read_from() -> None:
    registry = fleet(p0="prefill", p1="prefill", d0="decode", d1="decode", d2="decode", b="both")
    assert registry.sources_for(life(1, "p0")) == Sources(), "it only reads prompts"
    assert registry.sources_for(life(2, "d1")) == Sources(), "another life"
    found = registry.sources_for(life(1, "d1"))
    assert names(found.of_prompts) == ["p0", "p1"]
    assert names(found.of_answers) == ["d2", "b", "d0"], "the circle goes on behind itself"
    assert names(registry.sources_for(life(1, "b")).of_answers) == ["d0", "d1", "d2"]
    assert not registry.sources_for(life(1, "b")).of_prompts
    registry.drain(life(1, "d2"), "a test", 0.0)
    registry.bury(life(1, "d0"), "gone", 0.0, DeathCause.EXITED)
    assert names(registry.sources_for(life(1, "d1")).of_answers) == ["b"]


def test_in_a_big_pool_each_meets_a_few_and_is_met_by_as_few() -> None:
    roles: dict[str, Role] = {f"d{number:03}": "decode" for number in range(3 * MAX_NEIGHBOURS)}
    registry = fleet(**roles)
    met = Counter[str]()
    for number in range(3 * MAX_NEIGHBOURS):
        neighbours = names(registry.sources_for(life(1, f"d{number:03}")).of_answers)
        assert len(set(neighbours)) == MAX_NEIGHBOURS and f"d{number:03}" not in neighbours
        met.update(neighbours)
    assert set(met.values()) == {MAX_NEIGHBOURS}
