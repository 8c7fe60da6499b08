"""A wait for a credit at one worker or two: one winner, and nothing is kept by who lost."""

import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.handoff import Failure, RebindOutcome, ReserveOutcome
from segue.cluster.identity import Peer, WorkerIdentity
from segue.workers.credit_wait import MAX_ASKED, CreditWait


def peer(number: int) -> Peer:
    return Peer(WorkerIdentity(f"decode-{number}", "aa"), f"h:{number}")


NO_ROOM = ReserveOutcome(failure=Failure(FailureKind.CREDIT_TIMEOUT, "no room"))


class Decoders:
    """Answers of decode workers, given when a test says so."""

    def __init__(self) -> None:
        self.answers: dict[Peer, asyncio.Future[ReserveOutcome]] = {}
        self.leases: dict[Peer, str] = {}

    def reserve(self, decode: Peer, lease_id: str, wait_s: float) -> Awaitable[ReserveOutcome]:
        self.leases[decode] = lease_id
        self.answers[decode] = asyncio.get_running_loop().create_future()
        return self.answers[decode]


async def begun(decoders: Decoders) -> tuple[CreditWait, "asyncio.Task[Peer]"]:
    wait = CreditWait(peer(0), 5.0, decoders.reserve)

    async def result() -> Peer:
        return (await wait.result()).decode

    task = asyncio.create_task(result())
    await asyncio.sleep(0)
    return wait, task


async def test_the_other_one_grants_and_the_first_is_told_to_let_go() -> None:
    decoders = Decoders()
    wait, waiting = await begun(decoders)
    asking = asyncio.create_task(wait.rebind(peer(1), 1.0))
    await asyncio.sleep(0)
    decoders.answers[peer(1)].set_result(ReserveOutcome(3))
    assert await waiting == peer(1)
    assert (await asking).outcome is RebindOutcome.MOVED
    assert [asked.decode for asked in wait.losers] == [peer(0)]
    assert decoders.answers[peer(0)].cancelled()
    assert decoders.leases[peer(0)] != decoders.leases[peer(1)]
    assert (await wait.rebind(peer(2), 1.0)).outcome is RebindOutcome.SETTLED


async def test_without_room_elsewhere_the_first_place_is_kept() -> None:
    decoders = Decoders()
    wait, waiting = await begun(decoders)
    asking = asyncio.create_task(wait.rebind(peer(1), 1.0))
    await asyncio.sleep(0)
    assert (await wait.rebind(peer(2), 1.0)).outcome is RebindOutcome.REFUSED  # one at a time
    decoders.answers[peer(1)].set_result(NO_ROOM)
    assert (await asking).outcome is RebindOutcome.REFUSED
    again = await wait.rebind(peer(1), 1.0)
    assert again.outcome is RebindOutcome.REFUSED and "asked before" in again.reason
    decoders.answers[peer(0)].set_result(ReserveOutcome())
    assert await waiting == peer(0) and wait.losers == []


async def test_the_first_ones_failure_counts_if_nobody_grants() -> None:
    decoders = Decoders()
    wait, waiting = await begun(decoders)
    asking = asyncio.create_task(wait.rebind(peer(1), 1.0))
    await asyncio.sleep(0)
    decoders.answers[peer(0)].set_exception(AttemptFailed(FailureKind.PEER_LOST, "gone"))
    await asyncio.sleep(0)
    assert not waiting.done()  # the other may still grant
    decoders.answers[peer(1)].set_result(NO_ROOM)
    with pytest.raises(AttemptFailed, match="gone"):
        await waiting
    assert (await asking).outcome is RebindOutcome.SETTLED
    assert [asked.decode for asked in wait.losers] == [peer(0)]  # it may hold something yet


async def test_an_abort_leaves_nobody_waiting() -> None:
    decoders = Decoders()
    wait, waiting = await begun(decoders)
    asking = asyncio.create_task(wait.rebind(peer(1), 1.0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await asking).outcome is RebindOutcome.SETTLED
    assert [asked.decode for asked in wait.losers] == [peer(0), peer(1)]
    assert all(answer.cancelled() for answer in decoders.answers.values())


async def test_the_number_of_workers_asked_is_bounded() -> None:
    decoders = Decoders()
    wait, waiting = await begun(decoders)
    for number in range(1, MAX_ASKED + 3):
        asking = asyncio.create_task(wait.rebind(peer(number), 1.0))
        await asyncio.sleep(0)
        if peer(number) in decoders.answers:
            decoders.answers[peer(number)].set_result(NO_ROOM)
        assert (await asking).outcome is RebindOutcome.REFUSED
    assert len(decoders.answers) == MAX_ASKED
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


EVENTS = ["ask", "first grants", "first refuses", "first is lost", "other grants"]
EVENTS += ["other refuses", "other is lost", "abort", "turn"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_in_every_order_of_events_one_wins_and_the_rest_are_told(events: list[str]) -> None:
    asyncio.run(_play(events))


async def _play(events: list[str]) -> None:
    decoders = Decoders()
    wait, waiting = await begun(decoders)
    asking: list[asyncio.Task[object]] = []
    granted: list[Peer] = []
    for event in [*events, "turn", "turn", "abort"]:
        number = 1 if event.startswith("other") else 0
        answer = decoders.answers.get(peer(number))
        if event == "ask":
            asking.append(asyncio.create_task(wait.rebind(peer(1), 1.0)))
            await asyncio.sleep(0)
        elif event == "abort":
            waiting.cancel()
        elif event == "turn" or answer is None or answer.done():
            await asyncio.sleep(0)
        elif event.endswith("grants"):
            answer.set_result(ReserveOutcome())
            granted.append(peer(number))
        elif event.endswith("refuses"):
            answer.set_result(NO_ROOM)
        else:
            answer.set_exception(AttemptFailed(FailureKind.PEER_LOST, "gone"))
    outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
    await asyncio.wait_for(asyncio.gather(*asking), 5.0)
    winner = outcome if isinstance(outcome, Peer) else None
    assert winner is None or winner in granted
    told = {asked.decode for asked in wait.losers}
    assert all(loser in told for loser in granted if loser != winner)
    assert winner not in told
