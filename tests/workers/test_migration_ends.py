"""Moves that nobody needs any more: the answer has ended, or somebody has left meanwhile."""

import asyncio
from functools import partial

from local_fleet import Answer
from worker_trio import PROMPT, TEXT, Trio, trio

from segue.cluster.errors import SegueError
from segue.cluster.handoff import Reservation, ReserveOutcome
from segue.kvtransfer.loopback_transport import Faults
from segue.router.migration import Migration
from segue.workers.service import WorkerService


class SlowToGrant(WorkerService):
    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        outcome = await super().reserve(reservation)
        await asyncio.sleep(0.1)
        return outcome


async def test_it_ends_before_it_could_move() -> None:
    async with trio(target=SlowToGrant) as three:
        answer, result = await three.move(8, num_tokens=12)
        assert answer.tokens == TEXT[:12]
        assert isinstance(result, SegueError), result  # what it says depends on the moment
        assert not three.pair.journeys.counters.failures
        await three.settled()


async def test_a_client_that_leaves_takes_everything_with_it(three: Trio) -> None:
    """At whatever moment of the move."""
    three.pair.fabric.set_faults(Faults(delay_seconds=0.02))
    for moment in range(0, 100, 7):
        begun = asyncio.Event()
        three.num_asked += 1
        asking = asyncio.create_task(
            three.pair.ask(PROMPT, 80, request_id=three.name, on_token=partial(_set, begun))
        )
        await begun.wait()
        flight = three.pair.journeys.running[three.name].flight
        assert flight is not None
        await three.pair.until(lambda flight=flight: flight.generates)  # type: ignore[misc]
        moving = asyncio.create_task(three.newest())
        await asyncio.sleep(moment / 1000)
        asking.cancel()
        await asyncio.gather(asking, moving, return_exceptions=True)
        await three.settled()
    three.pair.fabric.set_faults(Faults())
    answer, result = await three.move(3)
    assert isinstance(result, Migration) and answer.tokens == TEXT


async def test_whoever_gave_the_order_leaves_at_whatever_moment(three: Trio) -> None:
    """It is carried out, or not, but somebody always has the request."""
    three.pair.fabric.set_faults(Faults(delay_seconds=0.02))
    for moment in range(0, 100, 9):

        async def withdrawn(moment: int = moment) -> None:
            moving = asyncio.create_task(three.newest())
            await asyncio.sleep(moment / 1000)
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)

        answer, _ = await three.ask(3, withdrawn)
        assert answer.tokens == TEXT
        await three.settled()


def _set(event: asyncio.Event, answer: Answer) -> None:
    event.set()
