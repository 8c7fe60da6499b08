"""Workers are introduced once, refused by name if they do not fit, and never kept for ever."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from worker_pair import Pair, worker_pair

from segue.cluster.errors import (
    AttemptFailed,
    ConnectionLost,
    SegueError,
    StaleKind,
    StaleReference,
)
from segue.cluster.fleet import Sources
from segue.cluster.identity import Peer, WorkerIdentity
from segue.workers.peers import Peers


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with worker_pair(introduced=False) as started:
        yield started


async def test_all_who_ask_share_one_introduction(pair: Pair) -> None:
    peers, receiver = pair.decode.service.parts.peers, pair.decode.receiver
    await asyncio.gather(*(peers.connect(pair.prefill.peer, receiver) for _ in range(20)))
    assert receiver.is_connected(pair.prefill.identity.incarnation)


async def test_a_caller_that_leaves_does_not_end_the_introduction(pair: Pair) -> None:
    peers, receiver = pair.decode.service.parts.peers, pair.decode.receiver
    leaving = asyncio.create_task(peers.connect(pair.prefill.peer, receiver))
    staying = asyncio.create_task(peers.connect(pair.prefill.peer, receiver))
    await asyncio.sleep(0)
    leaving.cancel()
    await staying
    assert leaving.cancelled()


async def test_whom_nobody_waits_for_any_more_is_not_kept_for_ever(pair: Pair) -> None:
    """It is met all the same; the controller's word that it is dead must reach it."""
    peers, receiver = pair.decode.service.parts.peers, pair.decode.receiver
    incarnation = pair.prefill.identity.incarnation
    leaving = asyncio.create_task(peers.connect(pair.prefill.peer, receiver))
    await asyncio.sleep(0)
    leaving.cancel()
    await pair.until(peers.pair_reports)
    next_life = Peer(WorkerIdentity("prefill-0", "next"), "127.0.0.1:1")

    def is_gone() -> bool:
        peers.greet(Sources((next_life,)), receiver)
        return not receiver.is_connected(incarnation)

    await pair.until(is_gone)


async def test_a_failed_introduction_is_tried_again(pair: Pair) -> None:
    peers, receiver = pair.decode.service.parts.peers, pair.decode.receiver
    nowhere = replace(pair.prefill.peer, address="127.0.0.1:1")
    with pytest.raises(SegueError):
        await peers.connect(nowhere, receiver)
    await peers.connect(pair.prefill.peer, receiver)


async def test_what_does_not_fit_is_refused_by_name(pair: Pair) -> None:
    pair.prefill.service.parts.facts.fingerprint["model_revision"] = "another"
    with pytest.raises(AttemptFailed, match="model_revision") as refusal:
        await pair.ask(range(9), 4)
    assert not refusal.value.retryable
    await pair.settled()


async def test_a_lost_connection_is_made_again(pair: Pair) -> None:
    peers, receiver = pair.decode.service.parts.peers, pair.decode.receiver
    incarnation = pair.prefill.identity.incarnation
    await peers.connect(pair.prefill.peer, receiver)
    receiver.disconnect(incarnation)
    await pair.until(lambda: not receiver.is_connected(incarnation))
    await peers.connect(pair.prefill.peer, receiver)
    assert receiver.is_connected(incarnation)


async def test_a_connection_to_another_life_is_not_kept(pair: Pair) -> None:
    """Where a worker was, its next life answers: each dead life would keep a connection open."""
    peers = pair.decode.service.parts.peers
    former = replace(pair.prefill.peer, identity=WorkerIdentity("prefill-0", "dead"))
    client = peers.client(former)
    with pytest.raises(StaleReference) as refusal:
        await client.describe(deadline_s=5)
    assert refusal.value.stale is StaleKind.INCARNATION
    assert peers.client(former) is not client


async def test_a_channel_to_nobody_is_not_kept(pair: Pair) -> None:
    """It would go on dialling for ever."""
    peers = pair.decode.service.parts.peers
    nobody = Peer(WorkerIdentity("prefill-9", "dead"), "127.0.0.1:1")
    client = peers.client(nobody)
    with pytest.raises(ConnectionLost):
        await client.describe(deadline_s=5)
    assert peers.client(nobody) is not client


def nobody(number: int) -> Peer:
    return Peer(WorkerIdentity(f"p{number}", "0"), "127.0.0.1:1")


async def test_idle_clients_are_bounded_and_those_asked_for_last_stay() -> None:
    peers = Peers(WorkerIdentity("me", "00"), {}, "token", max_idle=4)
    kept, first = peers.client(nobody(0)), peers.client(nobody(1))
    for number in range(2, 9):
        peers.client(nobody(number))
        assert peers.client(nobody(0)) is kept
    assert peers.client(first.peer) is not first
    await peers.close()


async def test_a_client_of_a_former_life_is_not_kept_beside_the_next_one() -> None:
    peers = Peers(WorkerIdentity("me", "00"), {}, "token")
    former, other = peers.client(nobody(0)), peers.client(nobody(1))
    peers.client(replace(nobody(0), identity=WorkerIdentity("p0", "1")))
    assert peers.client(nobody(0)) is not former and peers.client(nobody(1)) is other
    await peers.close()
