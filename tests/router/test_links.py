"""Links stand when a frame has come, break for all their attempts at once, and come back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest_asyncio
from attempt_events import attempt_events
from local_fleet import TOKEN
from scripted_worker import ScriptedWorker, scripted_worker

from segue.cluster.fleet import FleetView
from segue.cluster.handoff import TokenDelta
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.router.links import DeltaFrom, Event, LinkLost, WorkerLinks


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def event(inbox: asyncio.Queue[Event]) -> Event:
    async with asyncio.timeout(5):
        return await inbox.get()


@pytest_asyncio.fixture
async def links() -> AsyncIterator[WorkerLinks]:
    links = WorkerLinks("gateway", TOKEN)
    yield links
    await links.close()


@pytest_asyncio.fixture
async def worker(links: WorkerLinks) -> AsyncIterator[ScriptedWorker]:
    async with scripted_worker("both") as worker:
        links.on_fleet_change(FleetView(workers=(worker.view,)))
        assert not links.usable(worker.identity)
        await until(lambda: links.usable(worker.identity))
        yield worker


async def test_deltas_go_to_their_attempt_only(links: WorkerLinks, worker: ScriptedWorker) -> None:
    one = attempt_events(links, AttemptId("r", 1), [worker.identity])
    two = attempt_events(links, AttemptId("r", 2), [worker.identity])
    worker.say(AttemptId("r", 2), 3, 9)
    heard = await event(two)
    assert isinstance(heard, DeltaFrom) and heard.delta.token_ids == (9,)
    assert one.empty()


async def test_a_broken_link_fails_all_its_attempts_and_comes_back(
    links: WorkerLinks, worker: ScriptedWorker
) -> None:
    inboxes = [attempt_events(links, AttemptId("r", n), [worker.identity]) for n in (1, 2)]
    worker.hang_up()
    for inbox in inboxes:
        assert isinstance(await event(inbox), LinkLost)
    assert not links.usable(worker.identity)
    await until(lambda: links.usable(worker.identity))


async def test_a_worker_that_is_no_longer_listed_is_lost(
    links: WorkerLinks, worker: ScriptedWorker
) -> None:
    inbox = attempt_events(links, AttemptId("r", 1), [worker.identity])
    links.on_fleet_change(FleetView())
    assert isinstance(await event(inbox), LinkLost)
    assert links.client(worker.identity) is None and not links.usable(worker.identity)
    links.abort(AttemptId("r", 1), [worker.identity])  # nothing to tell, nobody to tell it to


async def test_unwanted_answers_are_aborted_once_at_a_time(
    links: WorkerLinks, worker: ScriptedWorker
) -> None:
    attempt = AttemptId("r", 1)
    worker.say(attempt, 3, 9)
    worker.say(attempt, 4, 9, finish=FinishReason.STOP)  # ends by itself
    worker.say(AttemptId("r", 2), 4, 9, finish=FinishReason.STOP)
    await until(lambda: worker.aborted)
    await asyncio.sleep(0.05)
    assert worker.aborted == [attempt]


async def test_aborts_reach_a_worker_while_the_gateway_closes(
    links: WorkerLinks, worker: ScriptedWorker
) -> None:
    links.abort(AttemptId("r", 1), [worker.identity])
    await links.close()
    assert worker.aborted == [AttemptId("r", 1)]


async def test_a_defect_in_what_hears_a_worker_is_a_broken_link() -> None:
    class Stumbling(WorkerLinks):
        has_stumbled = False

        def _deliver(self, link: Any, deltas: list[TokenDelta]) -> None:
            if deltas and not self.has_stumbled:
                self.has_stumbled = True
                raise ZeroDivisionError("a defect of the gateway")
            super()._deliver(link, deltas)

    links = Stumbling("gateway", TOKEN)
    async with scripted_worker("both") as worker:
        links.on_fleet_change(FleetView(workers=(worker.view,)))
        await until(lambda: links.usable(worker.identity))
        inbox = attempt_events(links, AttemptId("r", 1), [worker.identity])
        worker.say(AttemptId("r", 1), 3, 9)
        lost = await event(inbox)
        assert isinstance(lost, LinkLost) and "a defect of the gateway" in lost.reason
        await until(lambda: links.usable(worker.identity))
        await links.close()
