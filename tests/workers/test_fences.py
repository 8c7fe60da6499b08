"""Stale, reused, foreign and expired references do nothing at any use, and are counted by kind."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import pytest_asyncio
from engine_parts import expected_tokens
from worker_pair import Node, NodeKind, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, SegueError, StaleKind, StaleReference, Unavailable
from segue.cluster.fences import Use
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    LeaseRelease,
    LeaseVerdict,
    MigrationOrder,
    Reservation,
)
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.cluster.rpc.worker_client import WorkerClient
from segue.kvtransfer.loopback_transport import Faults
from segue.workers.service import WorkerService

PROMPT = range(30)
NOTHING = AttemptId("nothing", 1)
STRANGER = Peer(WorkerIdentity("prefill-7", "beef"), "127.0.0.1:1")
TOKEN = "cluster-token-of-tests"


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with worker_pair() as started:
        yield started


def assignment(pair: Pair, name: str = "r") -> Assignment:
    request = GenerationRequest(name, tuple(PROMPT), SamplingParams(temperature=0.0), StopRule(5))
    return Assignment(request, 1, (), pair.links.gateway_id, 20.0)


def reservation(pair: Pair, source: Peer) -> Reservation:
    return Reservation(assignment(pair), source, "lease-r", 5.0)


def refusals(node: Node) -> dict[tuple[Use, StaleKind], int]:
    return dict(node.service.fences.refusals)


Call = Callable[[WorkerClient, Pair], Awaitable[object]]
CALLS: dict[Use, Call] = {
    Use.SUBMIT: lambda c, p: c.submit(assignment(p), None, deadline_s=5),
    Use.ABORT: lambda c, p: c.abort([NOTHING], deadline_s=5),
    Use.FRAMES: lambda c, p: anext(c.frames("gateway-9")),
    Use.RESERVE: lambda c, p: c.reserve(reservation(p, p.prefill.peer), deadline_s=5),
    Use.ANNOUNCE: lambda c, p: c.announce(
        Announcement(p.prefill.peer, NOTHING, 1, 0, (0,), (0,)), deadline_s=5
    ),
    Use.CANCEL: lambda c, p: c.cancel(p.prefill.peer, NOTHING, "over", deadline_s=5),
    Use.RELEASE: lambda c, p: c.release(LeaseRelease("l", NOTHING, 1, True), deadline_s=5),
    Use.RENEW: lambda c, p: c.renew(p.decode.identity, ["l"], deadline_s=5),
    Use.DESCRIBE: lambda c, p: c.describe(deadline_s=5),
    Use.DRAIN: lambda c, p: c.drain("test", deadline_s=5),
    Use.MIGRATE: lambda c, p: c.migrate(
        MigrationOrder(NOTHING, p.prefill.peer, 2, 1), deadline_s=5
    ),
    Use.TRACE: lambda c, p: c.trace(1, deadline_s=5),
}


@pytest.mark.parametrize("use", CALLS)
async def test_what_is_meant_for_another_life(pair: Pair, use: Use) -> None:
    former = replace(pair.decode.peer, identity=WorkerIdentity("decode-0", "dead"))
    client = WorkerClient(former, TOKEN)
    try:
        with pytest.raises(StaleReference, match="meant for decode-0@dead") as refusal:
            await CALLS[use](client, pair)
        assert refusal.value.stale is StaleKind.INCARNATION
    finally:
        await client.close()
    assert refusals(pair.decode) == {(use, StaleKind.INCARNATION): 1}
    await pair.settled()


async def test_a_source_that_is_another_life(pair: Pair) -> None:
    former = replace(pair.prefill.peer, identity=WorkerIdentity("prefill-0", "dead"))
    with pytest.raises(SegueError):
        await pair.decode.client.reserve(reservation(pair, former), deadline_s=5)
    assert refusals(pair.prefill)[Use.DESCRIBE, StaleKind.INCARNATION] >= 1
    await pair.settled()


@pytest.mark.parametrize("again", ["while it runs", "when it is over"])
async def test_an_attempt_that_is_used_twice(pair: Pair, again: str) -> None:
    asked = reservation(pair, pair.prefill.peer)
    await pair.decode.client.reserve(asked, deadline_s=5)
    if again == "when it is over":
        await pair.decode.client.abort([asked.assignment.attempt_id], deadline_s=5)
        await pair.settled()
    with pytest.raises(AttemptFailed):
        await pair.decode.client.reserve(asked, deadline_s=5)
    with pytest.raises(AttemptFailed):
        await pair.decode.client.submit(asked.assignment, None, deadline_s=5)
    counted = refusals(pair.decode)
    assert counted[Use.RESERVE, StaleKind.ATTEMPT] == counted[Use.SUBMIT, StaleKind.ATTEMPT] == 1
    await pair.decode.client.abort([asked.assignment.attempt_id], deadline_s=5)
    await pair.settled()


async def test_announcements_of_nothing_and_of_strangers(pair: Pair) -> None:
    asked = reservation(pair, pair.prefill.peer)
    attempt = asked.assignment.attempt_id
    await pair.decode.client.reserve(asked, deadline_s=5)
    for source, name in ((pair.prefill.peer, NOTHING), (STRANGER, attempt)):
        with pytest.raises(StaleReference):
            await pair.decode.client.announce(
                Announcement(source, name, 1, 0, (0,), (0,)), deadline_s=5
            )
    with pytest.raises(StaleReference):
        await pair.decode.client.cancel(STRANGER, attempt, "over", deadline_s=5)
    assert refusals(pair.decode) == {
        (Use.ANNOUNCE, StaleKind.ATTEMPT): 1,
        (Use.ANNOUNCE, StaleKind.OWNER): 1,
        (Use.CANCEL, StaleKind.ATTEMPT): 1,
    }
    await pair.decode.client.abort([attempt], deadline_s=5)
    await pair.settled()


async def test_a_generation_that_changes_is_not_read(pair: Pair) -> None:
    asked = reservation(pair, pair.prefill.peer)
    await pair.decode.client.reserve(asked, deadline_s=5)
    sums = pair.prefill.runner.checksums((0, 1))
    for first, generation in ((0, 1), (1, 2)):
        announcement = Announcement(
            pair.prefill.peer,
            asked.assignment.attempt_id,
            generation,
            first,
            (first,),
            (sums[first],),
        )
        with suppress(StaleReference):
            await pair.decode.client.announce(announcement, deadline_s=5)
    await pair.settled()
    assert refusals(pair.decode)[Use.READ, StaleKind.GENERATION] == 1
    assert pair.decode.service.decode.bytes_announced == 0


async def test_releases_and_renewals_of_what_is_not_held(pair: Pair) -> None:
    client, leases = pair.prefill.client, pair.prefill.service.leases
    for lease_id in ("l", "m"):
        leases.expect(lease_id, pair.decode.identity, AttemptId("r", 1))
        leases.open(lease_id)
    for lease_id, attempt, generation in (
        ("none", NOTHING, 1),
        ("l", NOTHING, 1),
        ("l", AttemptId("r", 1), 2),
    ):
        verdict = await client.release(
            LeaseRelease(lease_id, attempt, generation, True), deadline_s=5
        )
        assert not verdict.held
    assert await client.renew(STRANGER.identity, ["m"], deadline_s=5) == {"m"}
    assert refusals(pair.prefill) == {
        (Use.RELEASE, StaleKind.LEASE): 1,
        (Use.RELEASE, StaleKind.ATTEMPT): 1,
        (Use.RELEASE, StaleKind.GENERATION): 1,
        (Use.RENEW, StaleKind.LEASE): 1,
    }
    leases.abandon("m", AttemptId("r", 1))
    await pair.settled()


class ForgetsLeases(WorkerService):
    """Every lease is over before its reader is done."""

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        self.leases.abandon(release.lease_id, release.attempt)
        return await super().release(release)


async def test_what_the_source_does_not_vouch_for_is_thrown_away() -> None:
    async with worker_pair(prefill_kind=NodeKind(ForgetsLeases), max_attempts=2) as pair:
        answer = await pair.ask(PROMPT, 5)
        assert answer.tokens == expected_tokens(PROMPT, 5)
        assert pair.journeys.counters.failures == {"fenced": 1}
        assert refusals(pair.decode)[Use.AFTER_READ, StaleKind.LEASE] == 1
        assert refusals(pair.prefill)[Use.RELEASE, StaleKind.LEASE] >= 1
        await pair.settled()


async def test_bytes_that_are_not_those_announced() -> None:
    transfer = TransferConfig(transport="loopback", read_timeout_s=2.0)
    async with worker_pair(transfer) as pair:
        await pair.ask(range(50, 55), 2)  # the two have met
        pair.fabric.set_faults(Faults(corrupt=True))
        with pytest.raises(Unavailable, match="checksum"):
            await pair.ask(PROMPT, 5)
        counters = (await pair.decode.client.status(deadline_s=5)).counters
        assert counters["fence_after_read/content"] > 0
        await pair.settled()


async def test_blocks_are_not_taken_back_twice(pair: Pair) -> None:
    """A desk that gave back what it never lent would free what somebody reads."""
    await pair.ask(range(50, 55), 2)
    await pair.settled()
    pair.prefill.service.leases._give_back((3,))
    await pair.until(lambda: refusals(pair.prefill))
    assert refusals(pair.prefill) == {(Use.FREE, StaleKind.LEASE): 1}
    await pair.settled()


async def test_they_are_in_the_status(pair: Pair) -> None:
    with pytest.raises(StaleReference):
        await pair.decode.client.cancel(STRANGER, NOTHING, "over", deadline_s=5)
    counters = (await pair.decode.client.status(deadline_s=5)).counters
    assert counters["fence_cancel/attempt"] == 1
