"""What a gateway makes of a rebinding: whose tokens count, whatever arrives first or not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest_asyncio
from journey_rig import Answer, Rig, until
from scripted_worker import ScriptedWorker, scripted_worker

from segue.cluster.fleet import FleetView
from segue.cluster.handoff import RebindOutcome, RebindReport
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.cluster.worker_status import WorkerStatus
from segue.router.rebinding import Rebinding

ATTEMPT = AttemptId("r", 1)


@dataclass(slots=True)
class Scene:
    """A request waits at `first`; `other` has room, and the prefill worker is being told."""

    rig: Rig
    prefill: ScriptedWorker
    first: ScriptedWorker
    other: ScriptedWorker
    rebinding: Rebinding
    answer: Answer

    def look(self) -> None:
        gauges: tuple[dict[str, float], ...] = (
            {},
            {"credits_waiting": 1.0, "waiting_requests": 1.0},
            {"kv_tokens_unpromised": 100.0, "free_slots": 4.0},
        )
        workers = tuple(
            replace(w.view, status=WorkerStatus(w.identity, w.role, gauges=told))
            for w, told in zip((self.prefill, self.first, self.other), gauges, strict=True)
        )
        self.rebinding.observe(FleetView(workers=workers))

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.rig.journeys.counters.rebindings)


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    rig = Rig(max_attempts=2, worker_wait_s=1.0)
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(scripted_worker("prefill"))
        first = await stack.enter_async_context(scripted_worker("decode", "decode-0"))
        other = await stack.enter_async_context(scripted_worker("decode", "decode-1"))
        await rig.connect(prefill, first, other)
        answer = rig.ask()
        await until(lambda: prefill.submitted)
        rebinding = Rebinding(rig.watcher, rig.journeys, rig.links, 0.5)
        started = Scene(rig, prefill, first, other, rebinding, answer)
        started.look()
        await until(lambda: prefill.rebinds)
        yield started
        await rebinding.close()
        await rig.close()


async def test_the_new_writers_token_may_overtake_the_word_that_it_has_the_credit(
    scene: Scene,
) -> None:
    order = scene.prefill.rebinds[0]
    assert (order.attempt, order.decode, order.wait_seconds) == (
        ATTEMPT,
        scene.other.view.peer,
        0.5,
    )
    scene.other.say(ATTEMPT, 3, 50)
    await until(lambda: scene.answer.tokens == [50])
    scene.prefill.rebind_reports.put_nowait(RebindReport(RebindOutcome.MOVED))
    scene.first.say(ATTEMPT, 4, 666)  # it has no credit: nothing it says counts
    scene.first.hang_up()  # nor is it missed
    await until(lambda: not scene.rig.links.usable(scene.first.identity))
    scene.other.say(ATTEMPT, 4, 51, finish=FinishReason.STOP)
    await scene.answer.end()
    assert scene.answer.tokens == [50, 51] and not scene.rig.journeys.counters.failures
    assert scene.outcomes == {"moved": 1}


async def test_a_refusal_leaves_everything_as_it_was(scene: Scene) -> None:
    scene.prefill.rebind_reports.put_nowait(RebindReport(RebindOutcome.REFUSED, "no room"))
    await until(lambda: scene.outcomes)
    scene.look()
    await asyncio.sleep(0.02)
    assert len(scene.prefill.rebinds) == 1  # that worker was asked before
    scene.other.hang_up()
    scene.first.say(ATTEMPT, 3, 50, finish=FinishReason.STOP)
    await scene.answer.end()
    assert scene.answer.tokens == [50] and not scene.rig.journeys.counters.failures


async def test_a_request_that_has_its_credit_goes_on_where_it_is(scene: Scene) -> None:
    scene.prefill.rebind_reports.put_nowait(RebindReport(RebindOutcome.SETTLED))
    await until(lambda: scene.outcomes)
    scene.prefill.say(ATTEMPT, 3, 50)
    await until(lambda: scene.answer.tokens == [50])
    scene.first.say(ATTEMPT, 4, 51, finish=FinishReason.STOP)
    await scene.answer.end()
    assert scene.answer.tokens == [50, 51]


async def test_a_client_that_leaves_is_told_to_all_three(scene: Scene) -> None:
    assert scene.answer.task is not None
    scene.answer.task.cancel()
    await asyncio.gather(scene.answer.task, return_exceptions=True)
    for worker in (scene.prefill, scene.first, scene.other):
        await until(lambda worker=worker: worker.aborted == [ATTEMPT])  # type: ignore[misc]
    scene.prefill.rebind_reports.put_nowait(RebindReport(RebindOutcome.MOVED))  # too late
    await until(lambda: scene.outcomes)
