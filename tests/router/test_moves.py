"""A request that moves: whatever the two workers say, and in whatever order it is heard."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from journey_rig import Answer, Rig, until
from scripted_worker import ScriptedWorker, scripted_worker

from segue.cluster.errors import AttemptFailed, FailureKind, InvalidRequest, Unavailable
from segue.cluster.handoff import Failure, MigrationReport
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.router.migration import Migration, Migrations

REPORT = MigrationReport(12, 3, 3000, 1, 0.004)
OLD, NEW = AttemptId("r", 1), AttemptId("r", 2)
STAYS = AttemptFailed(FailureKind.TRANSFER, "it stays")


@dataclass
class Scene:
    rig: Rig
    prefill: ScriptedWorker
    source: ScriptedWorker
    target: ScriptedWorker
    migrations: Migrations
    answer: Answer

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.rig.journeys.counters.migrations)

    async def order(self) -> "asyncio.Task[Migration]":
        """Given, and heard by the source."""
        task = asyncio.create_task(self.migrations.migrate("r", "decode-1"))
        await until(lambda: self.source.orders or task.done())
        return task


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    """A request whose tokens 50 and 51, at 3 and 4, have come."""
    rig = Rig(max_attempts=2, worker_wait_s=1.0)
    async with (
        scripted_worker("prefill") as prefill,
        scripted_worker("decode") as source,
        scripted_worker("decode", "decode-1") as target,
    ):
        await rig.connect(prefill, source, target)
        answer = rig.ask()
        await until(lambda: prefill.submitted)
        prefill.say(OLD, 3, 50)
        source.say(OLD, 3, 50, 51)
        await until(lambda: answer.tokens == [50, 51])
        migrations = Migrations(rig.journeys, rig.links, lambda: rig.watcher.view)
        yield Scene(rig, prefill, source, target, migrations, answer)
        await rig.close()


async def ends_with(scene: Scene, *tokens: int, failed: bool = False) -> None:
    await scene.answer.end()
    assert scene.answer.tokens == [50, 51, *tokens]
    assert scene.answer.finish is FinishReason.STOP
    assert bool(scene.rig.journeys.counters.failures) is failed
    assert scene.rig.journeys.counters.recovered == failed
    assert not scene.rig.journeys.running


@pytest.mark.parametrize("reply_first", [True, False])
async def test_the_new_worker_goes_on(scene: Scene, reply_first: bool) -> None:
    """Its first tokens and the old one's reply travel on two wires."""
    task = await scene.order()
    (order,) = scene.source.orders
    assert (order.attempt, order.new_id, order.known_position) == (OLD, NEW, 5)
    scene.source.say(OLD, 5, 52)
    if reply_first:
        scene.source.outcomes.put_nowait(REPORT)
        await until(lambda: scene.rig.journeys.running["r"].flight.attempt == NEW)  # type: ignore[union-attr]
    scene.target.say(NEW, 5, 52, 53)
    await until(lambda: scene.answer.tokens == [50, 51, 52, 53])
    scene.source.outcomes.put_nowait(REPORT)
    done = await task
    assert done.report == REPORT and done.pause_s is not None
    scene.source.say(OLD, 6, 99)  # late, and of no interest
    scene.source.hang_up()
    scene.target.say(NEW, 7, 54, finish=FinishReason.STOP)
    await ends_with(scene, 52, 53, 54)
    assert scene.outcomes == {"moved": 1}
    assert not scene.target.aborted


async def test_the_old_worker_goes_on(scene: Scene) -> None:
    """The target's failure is none of the request's; the source is told of it at once."""
    task = await scene.order()
    scene.target.say(NEW, 0, failure=Failure(FailureKind.TRANSFER, "broken"))
    await until(lambda: scene.source.aborted == [NEW])
    scene.source.outcomes.put_nowait(STAYS)
    with pytest.raises(AttemptFailed, match="it stays"):
        await task
    scene.source.say(OLD, 5, 52, finish=FinishReason.STOP)
    await ends_with(scene, 52)
    assert scene.outcomes == {"failed": 1}


async def test_a_target_that_is_lost_before_it_has_it(scene: Scene) -> None:
    task = await scene.order()
    scene.target.hang_up()
    await until(lambda: scene.source.aborted == [NEW])
    scene.source.outcomes.put_nowait(STAYS)
    with pytest.raises(AttemptFailed):
        await task
    scene.source.say(OLD, 5, 52, finish=FinishReason.STOP)
    await ends_with(scene, 52)


async def test_a_target_that_fails_though_the_source_let_go(scene: Scene) -> None:
    """Nobody has it: that is a failed attempt like any other."""
    task = await scene.order()
    scene.target.say(NEW, 0, failure=Failure(FailureKind.FENCED, "never heard of it"))
    scene.source.outcomes.put_nowait(REPORT)
    done = await task
    assert done.pause_s is None and scene.outcomes == {"target lost": 1}
    third = AttemptId("r", 3)
    await until(lambda: len(scene.prefill.submitted) == 2)
    assert scene.prefill.submitted[1][0].produced_token_ids == (50, 51)
    scene.prefill.say(third, 5, 52, finish=FinishReason.STOP)
    await ends_with(scene, 52, failed=True)


async def test_a_source_that_is_lost_before_it_answers(scene: Scene) -> None:
    task = await scene.order()
    assert scene.source.server is not None
    await scene.source.stop()
    with pytest.raises(Unavailable):
        await task
    assert scene.outcomes == {"source lost": 1}
    scene.rig.show(scene.prefill, scene.target)
    await until(lambda: len(scene.prefill.submitted) == 2)
    scene.prefill.say(AttemptId("r", 3), 5, 52, finish=FinishReason.STOP)
    await ends_with(scene, 52, failed=True)
    await until(lambda: NEW in scene.target.aborted)


async def test_a_source_that_is_lost_when_the_target_has_it(scene: Scene) -> None:
    task = await scene.order()
    scene.target.say(NEW, 5, 52)
    await until(lambda: scene.answer.tokens == [50, 51, 52])
    await scene.source.stop()
    done = await task
    assert done.report is None and done.pause_s is not None
    scene.target.say(NEW, 6, 53, finish=FinishReason.STOP)
    await ends_with(scene, 52, 53)


async def test_the_answer_ends_before_it_moves(scene: Scene) -> None:
    task = await scene.order()
    scene.source.say(OLD, 5, 52, finish=FinishReason.STOP)
    await ends_with(scene, 52)
    await until(lambda: scene.target.aborted == [NEW])
    scene.source.outcomes.put_nowait(AttemptFailed(FailureKind.REFUSED, "it has ended"))
    with pytest.raises(AttemptFailed, match="it has ended"):
        await task


async def test_a_client_that_leaves_while_it_moves(scene: Scene) -> None:
    task = await scene.order()
    assert scene.answer.task is not None
    scene.answer.task.cancel()
    await until(lambda: OLD in scene.source.aborted and NEW in scene.target.aborted)
    scene.source.outcomes.put_nowait(REPORT)
    done = await task
    assert done.pause_s is None and scene.outcomes == {"ended": 1}


async def test_what_was_not_known_when_the_order_was_given_is_not_skipped(scene: Scene) -> None:
    """The target's first words may overtake the source's last ones: it repeats them all."""
    task = await scene.order()
    scene.target.say(NEW, 5, 52, 53, 54)
    scene.source.say(OLD, 5, 52, 53)
    scene.source.outcomes.put_nowait(REPORT)
    await task
    scene.target.say(NEW, 8, 55, finish=FinishReason.STOP)
    await ends_with(scene, 52, 53, 54, 55)


async def test_only_one_move_at_a_time(scene: Scene) -> None:
    task = await scene.order()
    with pytest.raises(InvalidRequest, match="is being moved already"):
        await scene.migrations.migrate("r", "decode-1")
    scene.source.outcomes.put_nowait(STAYS)
    with pytest.raises(AttemptFailed):
        await task
    again = asyncio.create_task(scene.migrations.migrate("r", "decode-1"))
    await until(lambda: len(scene.source.orders) == 2)
    assert scene.source.orders[1].new_attempt == 3, "a number is used once"
    scene.source.outcomes.put_nowait(REPORT)
    scene.target.say(AttemptId("r", 3), 5, 52, finish=FinishReason.STOP)
    await again
    await ends_with(scene, 52)
