"""One half of a pair goes away during a handoff, or comes back as another life elsewhere."""

import asyncio

import pytest
from engine_parts import expected_tokens
from worker_pair import Node, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.kvtransfer.loopback_transport import Faults

PROMPT = range(30)


async def stop_while_landing(pair: Pair, victim: Node) -> None:
    """In the middle of the transfer: blocks are being read, and none has arrived."""
    await pair.until(lambda: pair.decode.receiver.num_in_flight)
    await victim.stop()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_goes_away_while_blocks_are_read(role: str) -> None:
    transfer = TransferConfig(transport="loopback", read_timeout_s=5.0)
    async with worker_pair(transfer, max_attempts=3) as pair:
        victim, survivor = (
            (pair.prefill, pair.decode) if role == "prefill" else (pair.decode, pair.prefill)
        )
        pair.fabric.set_faults(Faults(delay_seconds=1.0))
        asking = asyncio.create_task(pair.ask(PROMPT, 9))
        await stop_while_landing(pair, victim)
        assert (await asking).tokens == expected_tokens(PROMPT, 9)
        assert pair.journeys.counters.recovered == 1
        await pair.settled(survivor)


async def test_a_decode_worker_that_comes_back_at_another_address() -> None:
    """The old life and the new one share a name, and nothing else."""
    async with worker_pair(max_attempts=3) as pair:
        pair.decode.runner.step_seconds = 0.01
        asking = asyncio.create_task(pair.ask(PROMPT, 60))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        await pair.decode.stop()
        new = await pair.replace(pair.decode)
        pair.show(pair.prefill, new)
        assert (await asking).tokens == expected_tokens(PROMPT, 60)
        await pair.until(lambda: pair.links.usable(new.identity))
        before = new.service.decode.bytes_announced
        answer = await pair.ask(range(40, 60), 5)
        assert answer.tokens == expected_tokens(range(40, 60), 5)
        moved = new.service.decode.bytes_announced - before
        assert moved == 5 * new.block_bytes  # it was a handoff to the new one
        await pair.settled(pair.prefill, new)


async def test_a_prefill_worker_that_comes_back_is_introduced_again() -> None:
    async with worker_pair(max_attempts=3) as pair:
        assert (await pair.ask(PROMPT, 5)).tokens == expected_tokens(PROMPT, 5)
        await pair.prefill.stop()
        new = await pair.replace(pair.prefill)
        pair.show(new, pair.decode)
        await pair.until(lambda: pair.links.usable(new.identity))
        answer = await pair.ask(range(40, 60), 5)
        assert answer.tokens == expected_tokens(range(40, 60), 5)
        assert pair.decode.receiver.is_connected(new.identity.incarnation)
        await pair.settled(new, pair.decode)
