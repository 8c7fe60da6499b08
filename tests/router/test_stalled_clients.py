"""A client that does not read: what its workers say is true all the same, and its answer moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

import pytest_asyncio
from journey_rig import PROMPT, Rig, until
from scripted_worker import ScriptedWorker, scripted_worker

from segue.cluster.handoff import MigrationReport
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason, GenerationRequest, SamplingParams, StopRule
from segue.router.flight import Flight
from segue.router.links import DeltaFrom
from segue.router.migration import Migrations

REPORT = MigrationReport(12, 3, 3000, 1, 0.004)
ATTEMPTS = [AttemptId("r", number) for number in range(4)]  # by the number of an attempt


@dataclass(slots=True)
class Client:
    """Takes what comes first and then nothing before it `goes_on`."""

    rig: Rig
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.task = asyncio.create_task(self._run())
        await until(lambda: "r" in self.rig.journeys.running)

    async def _run(self) -> None:
        request = GenerationRequest("r", PROMPT, SamplingParams(), StopRule(8))
        async with aclosing(self.rig.journeys.generate(request)) as events:
            async for event in events:
                self.tokens.extend(event.token_ids)
                await self.goes_on.wait()

    async def reads(self, *tokens: int) -> None:
        self.goes_on.set()
        assert self.task is not None
        async with asyncio.timeout(5):
            await self.task
        assert self.tokens == list(tokens)


@dataclass(slots=True)
class Scene:
    rig: Rig
    prefill: ScriptedWorker
    decoders: list[ScriptedWorker]
    client: Client
    migrations: Migrations

    def move_to(self, number: int) -> "asyncio.Task[object]":
        return asyncio.create_task(self.migrations.migrate("r", f"decode-{number}"))


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    """The client has taken 50, which is at 3."""
    rig = Rig(max_attempts=1)
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(scripted_worker("prefill"))
        decoders = [
            await stack.enter_async_context(scripted_worker("decode", f"decode-{number}"))
            for number in range(3)
        ]
        await rig.connect(prefill, *decoders)
        client = Client(rig)
        await client.begin()
        await until(lambda: prefill.submitted)
        prefill.say(ATTEMPTS[1], 3, 50)
        await until(lambda: client.tokens == [50])
        migrations = Migrations(rig.journeys, rig.links, lambda: rig.watcher.view)
        yield Scene(rig, prefill, decoders, client, migrations)
        assert not rig.journeys.counters.failures
        await rig.close()


def flight_of(scene: Scene) -> Flight:
    flight = scene.rig.journeys.running["r"].flight
    assert flight is not None
    return flight


async def test_a_move_ends_though_nobody_reads(scene: Scene) -> None:
    source, target, _ = scene.decoders
    assert not flight_of(scene).generates
    source.say(ATTEMPTS[1], 3, 50, 51)
    await until(lambda: flight_of(scene).generates)
    moving = scene.move_to(1)
    await until(lambda: source.orders)
    assert source.orders[0].known_position == 4, "what was not read is told again"
    source.outcomes.put_nowait(REPORT)
    target.say(ATTEMPTS[2], 4, 51, 52)
    async with asyncio.timeout(5):
        await moving
    assert scene.rig.journeys.counters.migrations == {"moved": 1}
    assert scene.client.tokens == [50]
    source.hang_up()  # it is not needed any more
    await until(lambda: not scene.rig.links.usable(source.identity))
    target.say(ATTEMPTS[2], 6, 53, finish=FinishReason.STOP)
    await scene.client.reads(50, 51, 52, 53)


async def test_of_two_moves_in_a_row_both_end(scene: Scene) -> None:
    """The second is ordered before the first target has told a token."""
    first, second, third = scene.decoders
    first.say(ATTEMPTS[1], 3, 50, 51)
    await until(lambda: flight_of(scene).generates)
    moves = [scene.move_to(1)]
    first.outcomes.put_nowait(REPORT)
    await until(lambda: flight_of(scene).writer == second.identity)
    moves.append(scene.move_to(2))
    second.outcomes.put_nowait(REPORT)
    await until(lambda: flight_of(scene).writer == third.identity)
    third.say(ATTEMPTS[3], 4, 51, 52)
    async with asyncio.timeout(5):
        await asyncio.gather(*moves)
    assert scene.rig.journeys.counters.migrations == {"moved": 2}
    third.say(ATTEMPTS[3], 6, 53, finish=FinishReason.STOP)
    await scene.client.reads(50, 51, 52, 53)


async def test_moves_that_nobody_told_a_token_of_end_with_the_request(scene: Scene) -> None:
    first, second, _ = scene.decoders
    first.say(ATTEMPTS[1], 3, 50)
    await until(lambda: flight_of(scene).generates)
    moves = [scene.move_to(1)]
    first.outcomes.put_nowait(REPORT)
    await until(lambda: flight_of(scene).writer == second.identity)
    moves.append(scene.move_to(2))
    second.outcomes.put_nowait(REPORT)
    await until(lambda: flight_of(scene).writer == scene.decoders[2].identity)
    assert scene.client.task is not None
    scene.client.task.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*moves)
    assert scene.rig.journeys.counters.migrations == {"ended": 2}


async def test_a_defect_in_one_attempt_is_no_other_ones(scene: Scene) -> None:
    """All that a worker says comes over one link."""
    broken = DeltaFrom(scene.decoders[0].identity, None)  # type: ignore[arg-type]
    flight_of(scene).hear(broken)
    scene.client.goes_on.set()
    assert scene.client.task is not None
    await asyncio.gather(scene.client.task, return_exceptions=True)
    failures = scene.rig.journeys.counters.failures
    assert failures == {"worker_lost": 1}
    assert scene.rig.links.usable(scene.decoders[0].identity)
    failures.clear()
