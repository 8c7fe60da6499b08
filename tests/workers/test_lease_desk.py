"""The desk tells engine, receiver and owner what becomes of each lease, once."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from segue.cluster.errors import StaleReference
from segue.cluster.handoff import LeaseRelease
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.kvtransfer.lease import EndedLease
from segue.kvtransfer.receiver import Receiver
from segue.workers.engine import Engine
from segue.workers.kvcache.block_pool import BlockPool, BlockState
from segue.workers.lease_desk import LeaseDesk

READER = WorkerIdentity("decode-0", "aa")
OTHER = WorkerIdentity("decode-0", "bb")
ATTEMPT = AttemptId("r", 1)


class _Engine:
    """Does at once what it is asked."""

    def __init__(self) -> None:
        self.pool = BlockPool(8)
        self.cache: Any = self

    def post(self, action: Callable[[], object]) -> None:
        action()

    def end_lease(self, block_ids: tuple[int, ...]) -> None:
        self.pool.end_lease(block_ids)


class _Receiver:
    serving: bool = False

    def serve(self, serving: bool) -> None:
        self.serving = serving


class Rig:
    def __init__(self, lease_s: float = 0.1) -> None:
        self.engine, self.receiver = _Engine(), _Receiver()
        self.expired: list[EndedLease] = []
        self.desk = LeaseDesk(
            cast(Engine, self.engine),
            cast(Receiver, self.receiver),
            lease_s,
            asyncio.get_running_loop().time,
            self.expired.append,
        )

    def lease(self, lease_id: str = "l", count: int = 2) -> tuple[int, ...]:
        """Open one with blocks that their sequence has let go of."""
        blocks = tuple(self.engine.pool.allocate(count))
        self.engine.pool.lease(blocks)
        self.engine.pool.release(reversed(blocks))
        self.desk.expect(lease_id, READER, ATTEMPT)
        self.desk.open(lease_id)
        self.desk.add_blocks(lease_id, blocks)
        return blocks

    @property
    def leased(self) -> int:
        return self.engine.pool.counts()[BlockState.LEASED]


def release(lease_id: str = "l", generation: int = 1) -> LeaseRelease:
    return LeaseRelease(lease_id, ATTEMPT, generation, completed=True)


async def test_a_release_frees_once_and_only_the_first_is_held() -> None:
    rig = Rig()
    rig.lease()
    assert rig.leased == 2 and rig.receiver.serving
    assert rig.desk.release(release()).held
    assert rig.leased == 0 and not rig.receiver.serving
    assert not rig.desk.release(release()).held
    assert rig.desk.verdicts == {"held": 1, "unknown": 1}
    await asyncio.sleep(0.2)
    assert rig.expired == []


async def test_another_generation_is_not_held_but_frees() -> None:
    rig = Rig()
    rig.lease()
    verdict = rig.desk.release(release(generation=2))
    assert not verdict.held and "generation changed" in verdict.reason
    assert rig.leased == 0


async def test_the_timer_needs_no_new_work() -> None:
    rig = Rig()
    rig.lease()
    await asyncio.sleep(0.2)
    assert [lease.lease_id for lease in rig.expired] == ["l"]
    assert rig.leased == 0 and not rig.receiver.serving
    assert not rig.desk.release(release()).held
    with pytest.raises(StaleReference):
        rig.desk.add_blocks("l", (5,))


async def test_only_its_holder_renews_a_lease() -> None:
    rig = Rig(lease_s=0.3)
    rig.lease()
    await asyncio.sleep(0.2)
    assert rig.desk.renew(OTHER, ["l"]) == ["l"]
    assert rig.desk.renew(READER, ["l", "none"]) == ["none"]
    await asyncio.sleep(0.2)
    assert rig.leased == 2
    rig.desk.abandon("l", ATTEMPT)
    assert rig.leased == 0 and rig.expired == [] and not rig.desk.verdicts
    rig.desk.close()


async def test_abandoning_twice_or_for_another_attempt_does_nothing() -> None:
    rig = Rig()
    rig.lease()
    rig.desk.abandon("l", AttemptId("r", 2))
    assert rig.leased == 2
    rig.desk.abandon("l", ATTEMPT)
    rig.desk.abandon("l", ATTEMPT)
    assert rig.leased == 0
    rig.engine.pool.check_integrity()
    rig.desk.close()


async def test_an_owner_that_stumbles_costs_the_others_nothing() -> None:
    rig = Rig()

    def stumble(lease: EndedLease) -> None:
        rig.expired.append(lease)
        if lease.lease_id == "a":
            raise ZeroDivisionError("a defect of whoever is told")

    rig.desk = LeaseDesk(
        cast(Engine, rig.engine),
        cast(Receiver, rig.receiver),
        0.1,
        asyncio.get_running_loop().time,
        stumble,
    )
    rig.lease("a")
    rig.lease("b")
    await asyncio.sleep(0.2)
    rig.lease("c")
    await asyncio.sleep(0.2)
    assert [lease.lease_id for lease in rig.expired] == ["a", "b", "c"]
    assert rig.leased == 0 and not rig.receiver.serving
