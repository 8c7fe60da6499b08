"""A deployment that can not come up ends; one that has come up goes on."""

import asyncio

import pytest

from segue.cluster.fleet import DeathCause, FleetView, WorkerState, WorkerView
from segue.cluster.identity import Peer, WorkerIdentity
from segue.deploy.first_start import FirstStart

READY = WorkerState.READY
DEAD = WorkerState.DEAD


def worker(name: str, state: WorkerState, cause: DeathCause | None = None) -> WorkerView:
    identity = WorkerIdentity(name, "life")
    ending = "no libfast" if cause else ""
    return WorkerView(
        *(identity, name.split("-")[0], "decode", state, ending),
        peer=Peer(identity, "127.0.0.1:9") if state is READY else None,
        last_end=ending,
        deaths={cause: 1} if cause else {},
    )


async def failure(*views: tuple[WorkerView, ...]) -> str:
    """Empty: none."""
    first_start = FirstStart()
    for workers in views:
        first_start.observe(FleetView(workers=workers))
    failing = asyncio.create_task(first_start.failure())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if failing.done():
        return failing.result()
    failing.cancel()
    return ""


MISCONFIGURED = worker("decode-0", DEAD, DeathCause.MISCONFIGURED)


@pytest.mark.parametrize(
    "before",
    [(), (worker("prefill-0", READY),), (worker("decode-1", WorkerState.STARTING),)],
    ids=["nobody", "another_pool", "a_start"],
)
async def test_a_misconfigured_worker_ends_a_pool_that_never_served(
    before: tuple[WorkerView, ...],
) -> None:
    assert await failure(before, (*before, MISCONFIGURED)) == "decode-0 can not start: no libfast"


async def test_a_pool_that_has_served_goes_on() -> None:
    ready = worker("decode-1", READY)
    assert not await failure((ready,), (MISCONFIGURED,))
    assert not await failure((ready, MISCONFIGURED))


@pytest.mark.parametrize("cause", [c for c in DeathCause if c is not DeathCause.MISCONFIGURED])
async def test_no_other_death_ends_it(cause: DeathCause) -> None:
    assert not await failure((worker("decode-0", DEAD, cause),))
