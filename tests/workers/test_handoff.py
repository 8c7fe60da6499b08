"""The handoff between two workers, undisturbed and with every fault a transfer can have."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import pytest
import pytest_asyncio
from engine_parts import expected_tokens
from worker_pair import BLOCK_SIZE, NodeKind, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, DeadlineExceeded, SegueError, Unavailable
from segue.cluster.identity import WorkerIdentity
from segue.cluster.request import FinishReason
from segue.kvtransfer.loopback_transport import Faults
from segue.workers.engine import Engine
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.service import WorkerService

T = TypeVar("T")


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with worker_pair() as started:
        yield started


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 16, 31, 32, 33])
async def test_tokens_are_those_of_one_worker(pair: Pair, length: int) -> None:
    prompt = list(range(length))
    answer = await pair.ask(prompt, 7)
    assert answer.tokens == expected_tokens(prompt, 7)
    assert answer.finish is FinishReason.LENGTH
    await pair.settled()
    assert pair.prefill.service.attempts.ended == {"handed_off": 1}
    assert pair.decode.service.attempts.ended == {"length": 1}
    moved = -(-length // BLOCK_SIZE)
    assert pair.decode.service.decode.bytes_announced == moved * pair.decode.block_bytes
    assert pair.prefill.service.leases.verdicts == {"held": 1}


@pytest.mark.parametrize("max_tokens", [1, 2])
async def test_shortest_answers(pair: Pair, max_tokens: int) -> None:
    answer = await pair.ask(range(9), max_tokens)
    assert answer.tokens == expected_tokens(range(9), max_tokens)
    assert answer.finish is FinishReason.LENGTH
    await pair.settled()


async def test_a_first_token_that_stops(pair: Pair) -> None:
    (first,) = expected_tokens(range(9), 1)
    answer = await pair.ask(range(9), 10, stop=frozenset({first}))
    assert (answer.tokens, answer.finish) == ([first], FinishReason.STOP)
    await pair.settled()


@pytest.mark.parametrize("length", [8, 9, 11, 12])
async def test_what_the_target_holds_is_not_sent_again(pair: Pair, length: int) -> None:
    """The last block always is: at least one token of a prompt is computed."""
    prompt = list(range(length))
    await pair.ask(prompt, 3)
    before = pair.decode.receiver.transport.bytes_read
    answer = await pair.ask(prompt, 3)
    assert answer.tokens == expected_tokens(prompt, 3)
    assert answer.cached_tokens == length - 1  # part of a block is reused too
    moved = pair.decode.receiver.transport.bytes_read - before
    assert moved == pair.decode.runner.layout.block_bytes
    await pair.settled()


async def test_a_prompt_that_fills_the_cache_and_one_that_cannot_fit() -> None:
    async with worker_pair(num_blocks=6) as pair:
        prompt = list(range(16))  # with 8 tokens of an answer: 24 slots, for 6 blocks
        answer = await pair.ask(prompt, 8)
        assert answer.tokens == expected_tokens(prompt, 8)
        with pytest.raises(SegueError, match="need 7 KV blocks, the whole cache has 6"):
            await pair.ask(prompt, 9)
        await pair.settled()


async def test_slow_reads_only_take_longer(pair: Pair) -> None:
    pair.fabric.set_faults(Faults(delay_polls=20, delay_seconds=0.05))
    answer = await pair.ask(range(30), 5)
    assert answer.tokens == expected_tokens(range(30), 5)
    await pair.settled()


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(fail=True), "the read failed"),
        (Faults(corrupt=True), "failed their checksum"),
        (Faults(delay_seconds=1.5), "did not finish within its time"),
    ],
    ids=["failed", "corrupt", "late"],
)
async def test_a_broken_read_is_a_typed_failure_and_leaves_nothing(
    pair: Pair, faults: Faults, kind: str
) -> None:
    pair.fabric.set_faults(faults)
    with pytest.raises(Unavailable, match=kind):
        await pair.ask(range(30), 5)
    assert pair.journeys.counters.failures == {"transfer": 1}
    await pair.settled()
    pair.fabric.set_faults(Faults())
    answer = await pair.ask(range(30), 5)  # the pair works again, and nothing bad was cached
    assert answer.tokens == expected_tokens(range(30), 5)
    await pair.settled()


async def test_a_broken_transfer_is_recovered_down_the_ladder() -> None:
    async with worker_pair(max_attempts=3) as pair:
        pair.fabric.set_faults(Faults(corrupt=True))
        answer = await pair.ask(range(30), 9)
        assert answer.tokens == expected_tokens(range(30), 9)
        assert pair.journeys.counters.rungs == {"disaggregated": 1, "prefill_on_decode": 1}
        assert pair.journeys.counters.recovered == 1
        await pair.settled()


async def test_blocks_of_a_read_that_never_ends_stay_out_of_use(pair: Pair) -> None:
    """A timeout is no proof: only when the source is disconnected are they free again."""
    pair.fabric.set_faults(Faults(drop=True))
    with pytest.raises(Unavailable, match="did not finish within its time"):
        await pair.ask(range(30), 5)
    await pair.until(lambda: not len(pair.decode.service.attempts))
    await asyncio.sleep(0.05)
    assert pair.decode.engine.cache.pool.counts()[BlockState.LANDING] == 8
    pair.decode.receiver.disconnect(pair.prefill.identity.incarnation)
    await pair.settled()


class DeafToRenewals(WorkerService):
    async def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
        raise Unavailable("nobody hears")


async def test_a_lease_that_nobody_renews_ends_both_halves() -> None:
    transfer = TransferConfig(transport="loopback", lease_s=0.3, read_timeout_s=5.0)
    async with worker_pair(transfer, prefill_kind=NodeKind(DeafToRenewals)) as pair:
        pair.fabric.set_faults(Faults(delay_seconds=1.0))
        with pytest.raises(Unavailable, match="stopped renewing|does not answer"):
            await pair.ask(range(30), 5)
        assert pair.journeys.counters.failures == {"peer_lost": 1}
        await pair.settled()


class SlowToRenew(WorkerService):
    async def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
        await asyncio.sleep(0.2)
        return await super().renew(holder, lease_ids)


async def test_a_late_answer_about_a_released_lease_hurts_nobody() -> None:
    """Renewal asked at 0.3 s; read, fenced and released at 0.4 s; 'unknown' heard at 0.5 s."""
    transfer = TransferConfig(transport="loopback", lease_s=0.9, read_timeout_s=5.0)
    async with worker_pair(transfer, prefill_kind=NodeKind(SlowToRenew)) as pair:
        pair.fabric.set_faults(Faults(delay_seconds=0.4))
        pair.decode.runner.step_seconds = 0.02
        answer = await pair.ask(range(30), 20)
        assert answer.tokens == expected_tokens(range(30), 20)
        assert not pair.journeys.counters.failures
        await pair.settled()


class StallsTheLoop(Engine):
    """The loop hears of a landing only together with what the step after it had to say."""

    def call(self, action: Callable[[], T]) -> Future[T]:
        future = super().call(action)
        time.sleep(0.2)
        return future


async def test_a_failure_right_after_landing_is_told() -> None:
    kind = NodeKind(engine=StallsTheLoop)
    async with worker_pair(timeout_s=5.0, decode_kind=kind) as pair:
        pair.decode.runner.poison = set(expected_tokens(range(30), 1))
        with pytest.raises(AttemptFailed, match="cannot take"):
            await pair.ask(range(30), 5)
        assert pair.decode.service.attempts.ended == {"compute": 1}
        pair.decode.runner.poison = set()
        assert (await pair.ask(range(30), 5)).tokens == expected_tokens(range(30), 5)
        await pair.settled()


@pytest.mark.parametrize("chunk", [0, 8, 29])
async def test_a_prompt_that_fails_in_its_step_returns_its_credit(pair: Pair, chunk: int) -> None:
    pair.prefill.runner.poison = {chunk}
    with pytest.raises(AttemptFailed, match="cannot take"):
        await pair.ask(range(30), 5)
    await pair.settled()


async def test_a_gateway_that_vanishes_leaves_nothing() -> None:
    kind = NodeKind(absence_s=0.2)
    async with worker_pair(prefill_kind=kind, decode_kind=kind) as pair:
        pair.decode.runner.step_seconds = 0.02
        task = asyncio.create_task(pair.ask(range(30), 90))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        await pair.links.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pair.settled()
        assert pair.decode.service.attempts.ended == {"aborted": 1}


async def test_a_renewed_lease_outlives_its_term() -> None:
    transfer = TransferConfig(transport="loopback", lease_s=0.3, read_timeout_s=5.0)
    async with worker_pair(transfer) as pair:
        pair.fabric.set_faults(Faults(delay_seconds=1.0))
        answer = await pair.ask(range(30), 5)
        assert answer.tokens == expected_tokens(range(30), 5)
        assert pair.prefill.service.leases.verdicts == {"held": 1}
        await pair.settled()


async def test_a_deadline_while_reading_is_kept_by_the_target() -> None:
    transfer = TransferConfig(transport="loopback", read_timeout_s=20.0)
    async with worker_pair(transfer, timeout_s=0.6) as pair:
        pair.fabric.set_faults(Faults(delay_seconds=2.0))
        with pytest.raises(DeadlineExceeded):
            await pair.ask(range(30), 5)
        await pair.until(lambda: not len(pair.decode.service.attempts), timeout_s=1.0)
        await pair.settled()


async def test_no_room_at_the_target_in_time() -> None:
    transfer = TransferConfig(transport="loopback", credit_wait_s=0.2)
    async with worker_pair(transfer, num_blocks=8) as pair:
        pair.decode.runner.gate.clear()
        holder = asyncio.create_task(pair.ask(range(20), 8))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        with pytest.raises(Unavailable, match="no room within 0.2 s"):
            await pair.ask(range(50, 70), 8)
        assert pair.journeys.counters.failures == {"credit_timeout": 1}
        pair.decode.runner.gate.set()
        assert (await holder).tokens == expected_tokens(range(20), 8)
        await pair.settled()


async def test_a_client_that_leaves_takes_everything_with_it(pair: Pair) -> None:
    """At whatever moment: before, while and after the prompt is handed over."""
    pair.fabric.set_faults(Faults(delay_seconds=0.03))
    pair.prefill.runner.step_seconds = pair.decode.runner.step_seconds = 0.005
    for moment in range(0, 90, 6):
        task = asyncio.create_task(pair.ask(range(30), 90))
        await asyncio.sleep(moment / 1000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await pair.settled()
    pair.fabric.set_faults(Faults())
    assert (await pair.ask(range(30), 3)).tokens == expected_tokens(range(30), 3)


async def test_many_at_once_are_each_their_own(pair: Pair) -> None:
    prompts = [[i, *range(40, 40 + i)] for i in range(1, 13)]
    answers = await asyncio.gather(*(pair.ask(prompt, 6) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == expected_tokens(prompt, 6)
    await pair.settled()
