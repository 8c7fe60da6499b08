"""A request that waits for room at a full decode worker is written by one that has some."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from engine_parts import expected_tokens
from local_fleet import Answer
from worker_pair import Node, Pair, worker_pair

from segue.cluster.fleet import FleetView
from segue.cluster.handoff import Assignment
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.router.rebinding import Rebinding

HELD, LATE = range(20), range(50, 70)


@dataclass(slots=True)
class Crowd:
    """The pair's decode worker is full and stands still; `late` waits for room there."""

    pair: Pair
    other: Node
    rebinding: Rebinding
    held: "asyncio.Task[Answer]"
    late: "asyncio.Task[Answer]"

    def view(self) -> FleetView:
        """What every worker says of itself now."""
        nodes = (self.pair.prefill, self.pair.decode, self.other)
        views = [replace(node.view, status=node.service.status_now()) for node in nodes]
        return FleetView(workers=tuple(views))

    def look(self) -> None:
        """The gateway hears of it."""
        self.rebinding.observe(self.view())

    async def settled(self) -> None:
        self.pair.decode.runner.gate.set()
        await self.held
        await self.pair.settled(self.pair.prefill, self.pair.decode, self.other)

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.pair.journeys.counters.rebindings)


@asynccontextmanager
async def crowd(wait_s: float = 1.0) -> AsyncIterator[Crowd]:
    async with worker_pair(num_blocks=8) as pair:
        other = await pair.another("decode", "decode-1")
        pair.decode.runner.gate.clear()
        held = asyncio.create_task(pair.ask(HELD, 8))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        late = asyncio.create_task(pair.ask(LATE, 8, request_id="late"))
        await pair.until(lambda: pair.decode.service.decode.credits.gauges()["credits_waiting"])
        pair.show(pair.prefill, pair.decode, other)
        await pair.until(lambda: pair.links.usable(other.identity))
        rebinding = Rebinding(pair.watcher, pair.journeys, pair.links, wait_s)
        yield Crowd(pair, other, rebinding, held, late)
        await rebinding.close()


async def test_it_is_written_where_there_is_room_and_the_first_credit_returns() -> None:
    async with crowd() as scene:
        scene.look()
        scene.look()  # one question at a time
        answer = await scene.late
        assert answer.tokens == expected_tokens(LATE, 8)
        assert scene.outcomes == {"moved": 1} and not scene.pair.journeys.counters.failures
        assert scene.other.service.attempts.ended == {"length": 1}
        steps = await scene.pair.prefill.service.trace(8)
        told = [r.reason for step in steps for r in step.reasons if r.attempt.startswith("late")]
        assert told[told.index("rebound") + 1] == "admitted"
        await scene.pair.until(lambda: len(scene.pair.decode.service.attempts) == 1)
        assert scene.pair.decode.service.decode.credits.refused["caller_gone"] == 1
        await scene.settled()
        assert not scene.pair.journeys.load.answers


async def test_without_room_elsewhere_it_keeps_its_place_and_asks_nobody_twice() -> None:
    async with crowd(wait_s=0.1) as scene:
        view = scene.view()
        scene.other.runner.gate.clear()
        request = GenerationRequest("busy", (1, 2, 3), SamplingParams(), StopRule(2))
        busy = Assignment(request, 1, (), scene.pair.links.gateway_id, 20.0)
        await scene.other.service.submit(busy, None)
        await scene.pair.until(lambda: scene.other.engine.scheduler.context)
        scene.rebinding.observe(view)  # it had room then, but stands in a step now
        await scene.pair.until(lambda: scene.outcomes)
        assert scene.outcomes == {"refused": 1}
        scene.other.runner.gate.set()
        await scene.pair.settled(scene.other)
        scene.look()
        await asyncio.sleep(0.05)
        assert scene.outcomes == {"refused": 1} and not scene.late.done()
        scene.pair.decode.runner.gate.set()
        assert (await scene.late).tokens == expected_tokens(LATE, 8)
        assert scene.pair.decode.service.attempts.ended == {"length": 2}
        await scene.settled()


@pytest.mark.parametrize("moment", [0.0, 0.002, 0.01, 0.05])
async def test_a_client_that_leaves_while_it_is_moved_leaves_nothing(moment: float) -> None:
    async with crowd() as scene:
        scene.look()
        await asyncio.sleep(moment)
        scene.late.cancel()
        await asyncio.gather(scene.late, return_exceptions=True)
        await scene.settled()
        assert not scene.pair.journeys.load.answers


async def test_a_request_with_a_credit_is_not_moved() -> None:
    async with crowd() as scene:
        scene.pair.prefill.runner.gate.clear()
        scene.pair.decode.runner.gate.set()
        await scene.held
        leases = scene.pair.prefill.service.leases
        await scene.pair.until(lambda: len(leases) == 1)  # late has its credit now
        flight = scene.pair.journeys.running["late"].flight
        assert flight is not None and flight.may_be_rebound  # for all that the gateway knows
        client = scene.pair.links.client(scene.pair.prefill.identity)
        assert client is not None
        flight.begin_rebinding(scene.other.view)
        await scene.rebinding._ask(client, flight, scene.other.view)
        assert scene.outcomes == {"settled": 1} and not flight.may_be_rebound
        scene.pair.prefill.runner.gate.set()
        assert (await scene.late).tokens == expected_tokens(LATE, 8)
        await scene.settled()


async def test_a_worker_with_a_queue_or_too_little_room_is_not_asked() -> None:
    async with crowd() as scene:
        views = scene.view().workers
        for name, value in (
            ("kv_tokens_unpromised", 27.0),
            ("free_slots", 0.0),
            ("waiting_requests", 1.0),
        ):
            status = views[2].status
            assert status is not None
            poor = replace(status, gauges={**status.gauges, name: value})
            workers = (views[0], views[1], replace(views[2], status=poor))
            scene.rebinding.observe(FleetView(workers=workers))
        await asyncio.sleep(0.05)
        assert scene.outcomes == {}
        scene.look()
        await scene.late
        assert scene.outcomes == {"moved": 1}
        await scene.settled()
