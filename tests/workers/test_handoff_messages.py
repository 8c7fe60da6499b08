"""Messages of a handoff that come early, late, twice, or from the wrong one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
import pytest_asyncio
from attempt_events import attempt_events
from engine_parts import expected_tokens
from worker_pair import Node, Pair, worker_pair

from segue.cluster.errors import AttemptFailed, FailureKind, StaleReference
from segue.cluster.handoff import Announcement, Assignment, LeaseRelease, Reservation
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.cluster.rpc.worker_client import WorkerClient
from segue.kvtransfer.loopback_transport import Faults

PROMPT = range(30)
STRANGER = Peer(WorkerIdentity("prefill-7", "beef"), "127.0.0.1:1")


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with worker_pair() as started:
        yield started


def assignment(pair: Pair, name: str = "r", attempt: int = 1, max_tokens: int = 5) -> Assignment:
    request = GenerationRequest(
        name, tuple(PROMPT), SamplingParams(temperature=0.0), StopRule(max_tokens)
    )
    return Assignment(request, attempt, (), pair.links.gateway_id, 20.0)


def reservation(pair: Pair, source: Peer, name: str = "r") -> Reservation:
    return Reservation(assignment(pair, name), source, f"lease-{name}", 5.0)


async def follow(pair: Pair, attempt: AttemptId) -> list[int]:
    """Submit's other half: the tokens of an attempt up to its end."""
    inbox = attempt_events(pair.links, attempt, [pair.prefill.identity, pair.decode.identity])
    tokens: dict[int, int] = {}
    async with asyncio.timeout(10):
        while True:
            event = await inbox.get()
            delta = getattr(event, "delta", None)
            assert delta is not None and delta.failure is None, event
            tokens.update(enumerate(delta.token_ids, delta.position))
            if delta.finish is not None:
                return [tokens[position] for position in sorted(tokens)]


@pytest.mark.parametrize("local", [False, True])
async def test_an_abort_that_overtakes_its_submit(pair: Pair, local: bool) -> None:
    work = assignment(pair)
    await pair.prefill.client.abort([work.attempt_id], deadline_s=5)
    with pytest.raises(AttemptFailed, match="is over"):
        decode = None if local else pair.decode.peer
        await pair.prefill.client.submit(work, decode, deadline_s=5)
    assert pair.prefill.service.attempts.received == 0
    await pair.settled()


async def test_a_submit_comes_twice(pair: Pair) -> None:
    work = assignment(pair)
    following = asyncio.create_task(follow(pair, work.attempt_id))
    pair.prefill.runner.gate.clear()
    await pair.prefill.client.submit(work, pair.decode.peer, deadline_s=5)
    with pytest.raises(AttemptFailed, match="is here already"):
        await pair.prefill.client.submit(work, pair.decode.peer, deadline_s=5)
    pair.prefill.runner.gate.set()
    assert await following == expected_tokens(PROMPT, 5)
    await pair.settled()
    for client in (pair.prefill.client, pair.decode.client):  # and once more, late
        with pytest.raises(AttemptFailed, match="is over"):
            await client.submit(work, pair.decode.peer, deadline_s=5)


async def test_an_abort_in_the_same_turn_of_the_loop_as_its_submit(pair: Pair) -> None:
    """The owner's task has not had its first step then; it must clean up all the same."""
    service, work = pair.prefill.service, assignment(pair)
    await service.submit(work, pair.decode.peer)
    await service.abort([work.attempt_id])
    await pair.settled()
    assert service.attempts.ended == {"aborted": 1}


async def test_an_abort_in_the_same_turn_of_the_loop_as_its_reserve(pair: Pair) -> None:
    await pair.ask(range(5), 2)  # the two have been introduced
    service, asked = pair.decode.service, reservation(pair, pair.prefill.peer)
    call = asyncio.create_task(service.reserve(asked))
    while service.attempts.get(asked.assignment.attempt_id) is None:
        await asyncio.sleep(0)
    await service.abort([asked.assignment.attempt_id])
    await call  # a refusal, or a credit that is taken back at once
    await pair.settled()
    assert service.attempts.ended["cancelled"] == 1


async def test_a_cancel_that_overtakes_its_reserve(pair: Pair) -> None:
    asked = reservation(pair, pair.prefill.peer)
    attempt = asked.assignment.attempt_id
    with pytest.raises(StaleReference, match="is not landing here"):
        await pair.decode.client.cancel(pair.prefill.peer, attempt, "over", deadline_s=5)
    with pytest.raises(AttemptFailed, match="is over"):
        await pair.decode.client.reserve(asked, deadline_s=5)
    await pair.settled()


async def test_a_reserve_comes_twice(pair: Pair) -> None:
    asked = reservation(pair, pair.prefill.peer)
    outcome = await pair.decode.client.reserve(asked, deadline_s=5)
    assert outcome.failure is None
    with pytest.raises(AttemptFailed, match="is here already"):
        await pair.decode.client.reserve(asked, deadline_s=5)
    assert pair.decode.held()["kv_blocks_landing"] == 8  # the first one is unharmed
    attempt = asked.assignment.attempt_id
    await pair.decode.client.cancel(pair.prefill.peer, attempt, "over", deadline_s=5)
    await pair.settled()
    with pytest.raises(AttemptFailed, match="is over"):
        await pair.decode.client.reserve(asked, deadline_s=5)


async def test_a_reserve_whose_caller_goes_away(pair: Pair) -> None:
    pair.decode.runner.gate.clear()  # nothing is granted meanwhile
    await pair.decode.service.submit(assignment(pair, "busy"), None)
    await pair.until(lambda: pair.decode.engine.scheduler.context)
    call = asyncio.create_task(
        pair.decode.client.reserve(reservation(pair, pair.prefill.peer), deadline_s=5)
    )
    await pair.until(lambda: len(pair.decode.service.attempts) == 2)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await pair.until(lambda: len(pair.decode.service.attempts) == 1)
    pair.decode.runner.gate.set()
    await pair.settled()


async def test_others_cannot_speak_for_a_reservation(pair: Pair) -> None:
    asked = reservation(pair, pair.prefill.peer)
    attempt = asked.assignment.attempt_id
    await pair.decode.client.reserve(asked, deadline_s=5)
    with pytest.raises(StaleReference, match="reserved by another worker"):
        await pair.decode.client.announce(
            Announcement(STRANGER, attempt, 1, 0, (0,), (0,)), deadline_s=5
        )
    with pytest.raises(StaleReference, match="not landing here"):
        await pair.decode.client.cancel(STRANGER, attempt, "over", deadline_s=5)
    assert pair.decode.held()["kv_blocks_landing"] == 8
    await pair.decode.client.abort([attempt], deadline_s=5)
    await pair.settled()


async def test_messages_about_nothing(pair: Pair) -> None:
    nothing = AttemptId("nothing", 1)
    prefill, decode = pair.prefill.client, pair.decode.client
    with pytest.raises(StaleReference, match="has no credit here"):
        await decode.announce(
            Announcement(pair.prefill.peer, nothing, 1, 0, (0,), (0,)), deadline_s=5
        )
    verdict = await prefill.release(LeaseRelease("none", nothing, 1, True), deadline_s=5)
    assert not verdict.held and "unknown" in verdict.reason
    assert await prefill.renew(pair.decode.identity, ["none"], deadline_s=5) == {"none"}
    await prefill.abort([nothing], deadline_s=5)
    await pair.settled()


async def test_a_release_that_is_not_from_the_leases_attempt_ends_nothing(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_seconds=0.3))
    asking = asyncio.create_task(pair.ask(PROMPT, 5))
    await pair.until(lambda: len(pair.prefill.service.leases))
    (running,) = pair.prefill.service.attempts.all()
    forged = LeaseRelease(running.sequence.lease_id, AttemptId("other", 1), 1, True)
    assert not (await pair.prefill.client.release(forged, deadline_s=5)).held
    assert (await asking).tokens == expected_tokens(PROMPT, 5)
    await pair.settled()


@pytest.mark.parametrize(
    "announced",
    [
        Announcement(STRANGER, AttemptId("r", 1), 1, 1, (0,), (0,)),
        Announcement(STRANGER, AttemptId("r", 1), 1, 0, tuple(range(9)), (0,) * 9),
        Announcement(STRANGER, AttemptId("r", 1), 1, 0, (), (), first_token=3),
        Announcement(STRANGER, AttemptId("r", 1), 1, 0, (99,), (0,)),
    ],
    ids=["out of order", "too many", "too few", "no such block"],
)
async def test_an_announcement_that_makes_no_sense(pair: Pair, announced: Announcement) -> None:
    asked = reservation(pair, pair.prefill.peer)
    attempt = asked.assignment.attempt_id
    inbox = attempt_events(pair.links, attempt, [pair.decode.identity])
    await pair.decode.client.reserve(asked, deadline_s=5)
    announced = replace(announced, source=pair.prefill.peer)
    await pair.decode.client.announce(announced, deadline_s=5)
    if announced.first_token is None:  # the last one tells what became of the reads before
        last = replace(announced, block_ids=(), checksums=(), first_token=3)
        with suppress(StaleReference):  # it may have failed already
            await pair.decode.client.announce(last, deadline_s=5)
    async with asyncio.timeout(5):
        event = await inbox.get()
    delta = getattr(event, "delta", None)
    assert delta is not None and delta.failure is not None
    assert delta.failure.kind is FailureKind.TRANSFER
    await pair.settled()


async def test_an_answer_nobody_waits_for_is_aborted(pair: Pair) -> None:
    """As after an Abort that was lost while the worker was cut off."""
    pair.decode.runner.step_seconds = 0.02
    work = assignment(pair, max_tokens=95)
    await pair.prefill.client.submit(work, pair.decode.peer, deadline_s=5)
    await pair.until(lambda: not len(pair.decode.service.attempts) and ended(pair.decode))
    assert not ended(pair.decode).keys() & {"length", "stop"}
    await pair.settled()


async def test_another_life_at_the_same_address_refuses_everything(pair: Pair) -> None:
    identity = WorkerIdentity(pair.prefill.identity.worker_id, "0ld0ld")
    former = WorkerClient(Peer(identity, pair.prefill.peer.address), "cluster-token-of-tests")
    work, gone = assignment(pair), AttemptId("r", 1)
    for call in (
        former.submit(work, None, deadline_s=5),
        former.abort([gone], deadline_s=5),
        former.release(LeaseRelease("x", gone, 1, True), deadline_s=5),
        former.renew(pair.decode.identity, ["x"], deadline_s=5),
        former.describe(deadline_s=5),
    ):
        with pytest.raises(StaleReference, match="meant for"):
            await call
    await former.close()
    assert pair.prefill.service.attempts.received == 0


async def test_a_draining_target_is_not_blamed_on_the_source() -> None:
    async with worker_pair(max_attempts=1) as pair:
        pair.decode.service.attempts.draining = True
        answer = await pair.ask(PROMPT, 5)
        assert answer.tokens == expected_tokens(PROMPT, 5)
        assert pair.journeys.counters.failures == {"draining": 1}
        assert pair.journeys.counters.rungs == {"disaggregated": 1, "decode_on_prefill": 1}
        await pair.settled()


def ended(node: Node) -> dict[str, int]:
    return dict(node.service.attempts.ended)
