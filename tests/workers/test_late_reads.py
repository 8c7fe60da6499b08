"""Reads without an end: their blocks become free when the source is disconnected, not before."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from engine_parts import expected_tokens
from worker_pair import Node, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import Unavailable
from segue.kvtransfer.loopback_transport import Faults
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.late_reads import LOOK_SECONDS

PROMPT = range(30)
PATIENT = TransferConfig(transport="loopback", read_timeout_s=30.0)
READ_SECONDS = 1.5
HASTY = TransferConfig(transport="loopback", read_timeout_s=READ_SECONDS)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with worker_pair(PATIENT) as started:
        yield started


def landing(node: Node) -> int:
    return node.engine.cache.pool.counts()[BlockState.LANDING]


async def give_up_while_reading(pair: Pair) -> None:
    """The client leaves; the reads that have begun go on."""
    asking = asyncio.create_task(pair.ask(PROMPT, 5))
    await pair.until(lambda: pair.decode.receiver.num_in_flight)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await pair.until(lambda: not len(pair.decode.service.attempts))
    assert landing(pair.decode) > 0


async def test_a_source_that_is_gone_keeps_no_blocks(pair: Pair) -> None:
    """Its reads would go on for ever; they are far from their deadline."""
    pair.fabric.set_faults(Faults(drop=True))
    await give_up_while_reading(pair)
    await pair.prefill.stop()
    await pair.settled(pair.decode, timeout_s=15.0)
    assert not pair.decode.receiver.is_connected(pair.prefill.identity.incarnation)


async def test_nor_does_one_that_dies_before_a_read_has_timed_out() -> None:
    async with worker_pair(HASTY) as pair:
        pair.fabric.set_faults(Faults(drop=True))
        asking = asyncio.create_task(pair.ask(PROMPT, 5))
        await pair.until(lambda: pair.decode.receiver.num_in_flight)
        await pair.prefill.stop()
        with pytest.raises(Unavailable):
            await asking
        await pair.settled(pair.decode, timeout_s=15.0)


async def test_a_living_source_has_time_to_end_what_it_has_begun(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_seconds=2.5 * LOOK_SECONDS))
    await give_up_while_reading(pair)
    await pair.settled()
    assert pair.decode.receiver.kv_bytes_read > 0, "they ended well, though nobody needs them"
    assert pair.decode.receiver.is_connected(pair.prefill.identity.incarnation)


async def test_a_connection_that_ends_no_read_is_made_anew() -> None:
    async with worker_pair(HASTY) as pair:
        incarnation = pair.prefill.identity.incarnation
        pair.fabric.set_faults(Faults(drop=True))
        with pytest.raises(Unavailable, match="did not finish within its time"):
            await pair.ask(PROMPT, 5)
        await pair.until(lambda: not len(pair.decode.service.attempts))
        assert landing(pair.decode) > 0, "a timeout is no proof"
        assert pair.decode.receiver.is_connected(incarnation)
        pair.fabric.set_faults(Faults())
        await pair.settled(timeout_s=15.0)
        assert (await pair.ask(PROMPT, 5)).tokens == expected_tokens(PROMPT, 5)
        assert pair.decode.receiver.is_connected(incarnation)
        await pair.settled()


async def test_a_source_that_cannot_be_connected_is_refused_as_a_pair(pair: Pair) -> None:
    """Else every request would be sent to it, and fail."""
    pair.decode.receiver.disconnect(pair.prefill.identity.incarnation)
    pair.fabric.remove_region(pair.prefill.identity.incarnation)
    with pytest.raises(Unavailable, match="has no region"):
        await pair.ask(PROMPT, 5)
    assert pair.journeys.counters.failures == {"preflight": 1}
    (report,) = pair.decode.service.beat().pairs
    assert report.source == pair.prefill.identity and "has no region" in report.refusal
    await pair.settled()
