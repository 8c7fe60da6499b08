"""A worker meets more others than it stays connected to: what is in use is not cut off."""

import asyncio

import pytest
from engine_parts import expected_tokens
from worker_pair import NodeKind, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import Unavailable
from segue.cluster.fleet import Sources
from segue.cluster.identity import Peer, WorkerIdentity
from segue.kvtransfer.loopback_transport import Faults

PROMPT = range(9)
TRANSFER = TransferConfig(transport="loopback", read_timeout_s=8.0)
FORGETFUL = NodeKind(max_idle=1)


async def test_a_call_that_waits_is_not_cut_off_by_calls_to_others() -> None:
    """A prompt waits for its credit, for as long as the decode worker has no room."""
    async with worker_pair(TRANSFER, prefill_kind=FORGETFUL, num_blocks=16) as pair:
        pair.decode.runner.step_seconds = 0.02
        first = asyncio.create_task(pair.ask(PROMPT, 50))  # 59 tokens: 15 of 16 blocks
        credits = pair.decode.service.decode.credits
        await pair.until(lambda: credits.granted)
        second = asyncio.create_task(pair.ask(range(20, 29), 30))
        await pair.until(lambda: credits.gauges()["credits_waiting"])
        peers = pair.prefill.service.parts.peers
        waiting = peers.client(pair.decode.peer)
        for number in range(8):
            peers.client(Peer(WorkerIdentity(f"decode-{number + 1}", "x"), "127.0.0.1:1"))
        assert peers.client(pair.decode.peer) is waiting
        assert (await first).tokens == expected_tokens(PROMPT, 50)
        assert (await second).tokens == expected_tokens(range(20, 29), 30)
        assert not pair.journeys.counters.failures


async def test_a_source_that_is_read_from_is_not_cut_off_by_meeting_others() -> None:
    async with worker_pair(TRANSFER, decode_kind=FORGETFUL) as pair:
        receiver, peers = pair.decode.receiver, pair.decode.service.parts.peers
        others = [await pair.another("prefill", f"prefill-{number}") for number in (1, 2, 3)]
        pair.fabric.set_faults(Faults(delay_seconds=1.0), pair.prefill.identity.incarnation)
        asking = asyncio.create_task(pair.ask(PROMPT, 4))
        await pair.until(lambda: receiver.num_in_flight)
        for other in others:
            await peers.connect(other.peer, receiver)
        assert receiver.is_connected(pair.prefill.identity.incarnation)
        assert (await asking).tokens == expected_tokens(PROMPT, 4)
        assert not pair.journeys.counters.failures
        await pair.until(  # now it is idle too, and was of use last
            lambda: (
                [receiver.is_connected(other.identity.incarnation) for other in others]
                == [False] * 3
            )
        )
        assert receiver.is_connected(pair.prefill.identity.incarnation)


async def test_former_lives_do_not_stay_connected() -> None:
    async with worker_pair(TRANSFER) as pair:
        receiver, former = pair.decode.receiver, []
        for number in range(4):
            former.append(pair.prefill.identity.incarnation)
            await pair.prefill.stop()
            pair.nodes.remove(pair.prefill)
            pair.prefill = await pair.replace(pair.prefill)
            pair.show(pair.prefill, pair.decode)
            await pair.until(lambda: pair.links.usable(pair.prefill.identity))
            assert (await pair.ask([number] * 9, 4)).tokens == expected_tokens([number] * 9, 4)
        await pair.until(lambda: not any(map(receiver.is_connected, former)))
        assert receiver.is_connected(pair.prefill.identity.incarnation)
        (report,) = pair.decode.service.status_now().pairs
        assert report.source == pair.prefill.identity


async def test_what_the_controller_says_is_dead_ends_at_once_with_all_that_it_held() -> None:
    """Its reads have no end of their own; their deadline is far."""
    transfer = TRANSFER.model_copy(update={"read_timeout_s": 60.0})
    async with worker_pair(transfer) as pair:
        pair.fabric.set_faults(Faults(drop=True))
        asking = asyncio.create_task(pair.ask(PROMPT, 4))
        await pair.until(lambda: pair.decode.receiver.num_in_flight)
        next_life = Peer(WorkerIdentity("prefill-0", "next"), "127.0.0.1:1")
        pair.decode.service.on_sources(Sources((next_life,)))
        with pytest.raises(Unavailable, match="the read failed"):
            await asking
        await pair.settled()
