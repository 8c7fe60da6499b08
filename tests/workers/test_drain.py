"""A worker that is to leave takes nothing new, and waits for what it has."""

import asyncio
from dataclasses import replace

import pytest
from engine_parts import expected_tokens
from worker_pair import Node, Pair, worker_pair

from segue.cluster.errors import AttemptFailed
from segue.cluster.fleet import FleetView, WorkerState
from segue.cluster.handoff import Assignment
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.cluster.worker_status import WorkerCondition
from segue.kvtransfer.loopback_transport import Faults
from segue.router.evacuation import Evacuation
from segue.router.migration import Migrations

PROMPT = range(9)


def show_draining(pair: Pair, leaver: Node, *others: Node) -> None:
    """As the controller would tell it, once the worker has said so."""
    status = leaver.service.status_now()
    assert status.condition is WorkerCondition.DRAINING and status.cause == "a test"
    draining = replace(leaver.view, state=WorkerState.DRAINING)
    pair.watcher.view = FleetView(workers=(draining, *(node.view for node in others)))
    pair.links.on_fleet_change(pair.watcher.view)


async def test_an_idle_worker_leaves_at_once() -> None:
    async with worker_pair() as pair:
        draining = pair.decode.service.draining
        assert draining.is_over and not draining.begun.is_set()
        await pair.decode.client.drain("a test", deadline_s=5)
        await pair.decode.client.drain("again", deadline_s=5)
        assert draining.begun.is_set() and draining.reason == "a test"
        assert await draining.finish(5.0)
        assert (await pair.decode.client.status(deadline_s=5)).cause == "a test"


async def test_four_streams_leave_a_worker_that_drains() -> None:
    async with worker_pair() as pair:
        other = await pair.another("decode", "decode-1")
        leaver = pair.decode
        leaver.runner.step_seconds = 0.03
        prompts = [tuple(range(i, 9 + i)) for i in range(4)]
        asking = [asyncio.create_task(pair.ask(prompt, 20)) for prompt in prompts]
        await pair.until(lambda: len(leaver.engine.scheduler.generation) == 4)
        migrations = Migrations(pair.journeys, pair.links, lambda: pair.watcher.view)
        evacuation = Evacuation(pair.watcher, pair.journeys, migrations)
        await leaver.service.drain("a test")
        assert not leaver.service.draining.is_over
        show_draining(pair, leaver, pair.prefill, other)
        await pair.until(lambda: pair.links.usable(other.identity))
        evacuation.observe(pair.watcher.view)
        evacuation.observe(pair.watcher.view)
        assert await leaver.service.draining.finish(10.0)
        for prompt, task in zip(prompts, asking, strict=True):
            assert (await task).tokens == expected_tokens(prompt, 20)
        assert leaver.service.attempts.ended == {"migrated": 4}
        assert pair.journeys.counters.migrations == {"moved": 4}
        assert not pair.journeys.counters.failures
        await evacuation.close()
        await pair.settled(pair.prefill, leaver, other)


async def test_with_nowhere_to_go_they_end_where_they_are() -> None:
    async with worker_pair() as pair:
        leaver = pair.decode
        leaver.runner.step_seconds = 0.01
        asking = asyncio.create_task(pair.ask(PROMPT, 20))
        await pair.until(lambda: len(leaver.engine.scheduler.generation))
        migrations = Migrations(pair.journeys, pair.links, lambda: pair.watcher.view)
        evacuation = Evacuation(pair.watcher, pair.journeys, migrations)
        await leaver.service.drain("a test")
        show_draining(pair, leaver, pair.prefill)
        evacuation.observe(pair.watcher.view)
        assert not await leaver.service.draining.finish(0.05), "the time is up first"
        assert await leaver.service.draining.finish(10.0)
        assert (await asking).tokens == expected_tokens(PROMPT, 20)
        assert not pair.journeys.counters.migrations
        await evacuation.close()


async def test_a_prefill_worker_stays_until_its_leases_end() -> None:
    async with worker_pair() as pair:
        pair.fabric.set_faults(Faults(delay_seconds=0.3))
        asking = asyncio.create_task(pair.ask(range(30), 5))
        await pair.until(lambda: len(pair.prefill.service.leases))
        await pair.prefill.service.drain("a test")
        assert pair.prefill.service.draining.waits_for == "1 requests, 1 leases"
        assert not pair.prefill.service.draining.is_over
        assert await pair.prefill.service.draining.finish(10.0)
        assert (await asking).tokens == expected_tokens(range(30), 5)
        assert pair.prefill.service.leases.verdicts == {"held": 1}
        with pytest.raises(AttemptFailed, match="takes no new requests"):
            show_draining(pair, pair.prefill)
            await pair.prefill.service.submit(_assignment(pair), None)


def _assignment(pair: Pair) -> Assignment:
    request = GenerationRequest("late", tuple(PROMPT), SamplingParams(temperature=0.0), StopRule(3))
    return Assignment(request, 1, (), pair.links.gateway_id, 20.0)
