"""Workers that drain are emptied: no client, move or full target holds up what can go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace

import pytest_asyncio
from journey_rig import PROMPT, Rig, until
from scripted_worker import ScriptedWorker, scripted_worker

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.fleet import FleetView, WorkerState
from segue.cluster.handoff import MigrationReport
from segue.cluster.identity import AttemptId
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.cluster.worker_status import WorkerStatus
from segue.router.evacuation import AT_ONCE, Evacuation
from segue.router.migration import Migrations

REPORT = MigrationReport(4, 1, 1, 0, 0.01)
NAMES = [f"r{number}" for number in range(AT_ONCE + 2)]
ROOM = {"kv_tokens_unpromised": 1000.0, "free_slots": 8.0}
NO_ROOM = {"kv_tokens_unpromised": 0.0, "free_slots": 0.0}
STAYS = AttemptFailed(FailureKind.BUSY, "2048 attempts are here already")


@dataclass(slots=True)
class Scene:
    """Answers that decode-0 writes, which then drains; decode-1 and decode-2 are there."""

    rig: Rig
    workers: list[ScriptedWorker]
    evacuation: Evacuation
    taken: dict[str, int] = field(default_factory=dict)
    unread: asyncio.Event = field(default_factory=asyncio.Event)
    clients: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def leaver(self) -> ScriptedWorker:
        return self.workers[0]

    async def _client(self, name: str, reads: bool) -> None:
        request = GenerationRequest(name, PROMPT, SamplingParams(), StopRule(50))
        async with aclosing(self.rig.journeys.generate(request)) as events:
            async for event in events:
                self.taken[name] = self.taken.get(name, 0) + len(event.token_ids)
                if not reads:
                    await self.unread.wait()

    async def begin(self, names: list[str], unread: tuple[str, ...] = ()) -> None:
        await self.rig.connect(self.leaver)
        for name in names:
            self.clients.append(asyncio.create_task(self._client(name, name not in unread)))
        await until(lambda: len(self.leaver.submitted) == len(names))
        for name in names:
            self.leaver.say(AttemptId(name, 1), 3, 7)
        await until(lambda: len(self.taken) == len(names))

    async def drain(self, *gauges: dict[str, float]) -> None:
        """What decode-1 and decode-2 say of their room, as far as they do."""
        await self.rig.connect(*self.workers)
        views = [replace(self.leaver.view, state=WorkerState.DRAINING)]
        for number, worker in enumerate(self.workers[1:]):
            told = gauges[number] if number < len(gauges) else None
            status = None if told is None else WorkerStatus(worker.identity, "both", gauges=told)
            views.append(replace(worker.view, status=status))
        self.rig.watcher.view = view = FleetView(workers=tuple(views))
        self.evacuation.observe(view)

    @property
    def ordered(self) -> list[str]:
        return [order.attempt.request_id for order in self.leaver.orders]

    @property
    def destinations(self) -> list[str]:
        return [order.destination.identity.worker_id for order in self.leaver.orders]


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    rig = Rig()
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(scripted_worker("both", f"decode-{number}"))
            for number in range(3)
        ]
        migrations = Migrations(rig.journeys, rig.links, lambda: rig.watcher.view)
        scene = Scene(rig, workers, Evacuation(rig.watcher, rig.journeys, migrations))
        yield scene
        await scene.evacuation.close()
        for client in scene.clients:
            client.cancel()
        await asyncio.gather(*scene.clients, return_exceptions=True)
        await rig.close()


async def test_a_client_that_does_not_read_holds_up_nobody(scene: Scene) -> None:
    await scene.begin(NAMES, unread=(NAMES[0],))
    for _ in NAMES:
        scene.leaver.outcomes.put_nowait(REPORT)
    await scene.drain()
    await until(lambda: sorted(scene.ordered) == NAMES)
    flights = [progress.flight for progress in scene.rig.journeys.running.values()]
    await until(
        lambda: all(flight and flight.writer != scene.leaver.identity for flight in flights)
    )
    assert scene.taken == dict.fromkeys(NAMES, 1), "no target has told a token yet"


async def test_a_move_that_takes_long_holds_up_no_other(scene: Scene) -> None:
    await scene.begin(NAMES)
    for _ in NAMES[1:]:  # one order is never answered
        scene.leaver.outcomes.put_nowait(REPORT)
    await scene.drain()
    await until(lambda: sorted(scene.ordered) == NAMES)


async def test_only_a_few_go_at_once(scene: Scene) -> None:
    await scene.begin(NAMES)
    await scene.drain()
    await until(lambda: len(scene.ordered) == AT_ONCE)
    await asyncio.sleep(0.3)  # three looks
    assert len(scene.ordered) == AT_ONCE
    scene.leaver.outcomes.put_nowait(REPORT)
    await until(lambda: len(scene.ordered) == AT_ONCE + 1)


async def test_they_go_where_there_is_room(scene: Scene) -> None:
    """Not where the fewest answers of this gateway are."""
    await scene.begin(NAMES[:3])
    await scene.drain(NO_ROOM, ROOM)
    await until(lambda: len(scene.ordered) == 3)
    assert scene.destinations == ["decode-2"] * 3


async def test_room_is_given_away_once(scene: Scene) -> None:
    """Each worker says what it has once a second; moves are ordered more often."""
    await scene.begin(NAMES[:2])
    one_answer = {"kv_tokens_unpromised": 60.0, "free_slots": 8.0}  # of 53 tokens at most
    await scene.drain(one_answer, one_answer)
    await until(lambda: len(scene.ordered) == 2)
    assert sorted(scene.destinations) == ["decode-1", "decode-2"]


async def test_another_target_is_tried_the_next_time(scene: Scene) -> None:
    await scene.begin(NAMES[:1])
    for _ in range(2):
        scene.leaver.outcomes.put_nowait(STAYS)
    await scene.drain(ROOM, NO_ROOM)
    await until(lambda: len(scene.ordered) == 3)
    assert scene.destinations[:2] == ["decode-1", "decode-2"]
    assert scene.destinations[2] in ("decode-1", "decode-2"), "and then both again"
