"""The two classic corruptions of a handoff, on both transports: without what prevents them they
happen, with it they do not, and are counted.

A late reader: the source reuses blocks that have not been read yet. A late read: the target gives
landing blocks to somebody else while a read into them is still under way.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from engine_parts import expected_tokens
from fault_plan import FaultPlan
from faulty_transport import FaultyTransport
from worker_pair import NodeKind, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import StaleKind
from segue.cluster.fences import Use
from segue.cluster.handoff import Assignment, LeaseRelease, LeaseVerdict
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.kvtransfer.loopback_transport import LoopbackFabric, LoopbackTransport
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.kvtransfer.receiver import BlockRead, Receiver
from segue.kvtransfer.transport import Transport
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.prefill_role import Released
from segue.workers.service import WorkerService

NUM_BLOCKS = 16
PROMPT = range(30)  # 8 blocks
OTHER_PROMPT = range(60, 104)  # 11 blocks, so that some of those 8 are used again
NUM_TOKENS = 5

Make = Callable[[LoopbackFabric, str], Transport]


@dataclass(slots=True)
class Plans:
    """What goes wrong in the reads of every transport that was made here."""

    make: Make
    now: FaultPlan = FaultPlan()

    def transport(self, fabric: LoopbackFabric, name: str) -> Transport:
        return FaultyTransport(self.make(fabric, name), lambda: self.now)


@pytest.fixture(params=["loopback", "nixl"])
def plans(request: pytest.FixtureRequest) -> Plans:
    if request.param == "loopback":
        return Plans(LoopbackTransport)
    return Plans(lambda fabric, name: NixlTransport(name))


class VouchesForAll(WorkerService):
    """A source without the fence: it believes, and says, that every lease was held to the end."""

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        self.leases.release(release)
        running = self.attempts.get(release.attempt)
        if running is not None:
            running.events.put_nowait(Released(completed=True))
        return LeaseVerdict(True)


class ForgetsReads(Receiver):
    """A target without quarantine: a read that nobody waits for is taken to have ended."""

    def read(
        self,
        peer: str,
        remote_blocks: tuple[int, ...],
        local_blocks: tuple[int, ...],
        checksums: tuple[int, ...],
        timeout_s: float,
        layers: range | None = None,
    ) -> BlockRead:
        read = super().read(peer, remote_blocks, local_blocks, checksums, timeout_s, layers)
        over: Future[None] = Future()
        over.set_result(None)
        return replace(read, terminal=over)


@asynccontextmanager
async def opened(
    plans: Plans,
    *,
    checksum: bool = True,
    service: type[WorkerService] = WorkerService,
    receiver: type[Receiver] = Receiver,
) -> AsyncIterator[Pair]:
    transfer = TransferConfig(transport="loopback", read_timeout_s=10.0, checksum=checksum)
    prefill = NodeKind(service=service, transport=plans.transport)
    decode = NodeKind(receiver=receiver, transport=plans.transport)
    async with worker_pair(
        transfer,
        max_attempts=2,
        num_blocks=NUM_BLOCKS,
        prefill_kind=prefill,
        decode_kind=decode,
    ) as pair:
        yield pair


async def compute_on_prefill(pair: Pair) -> None:
    """Another prompt, that needs more blocks than are free beside those of the first."""
    request = GenerationRequest(
        "other", tuple(OTHER_PROMPT), SamplingParams(temperature=0.0), StopRule(1)
    )
    node = pair.prefill
    assignment = Assignment(request, 1, (), pair.links.gateway_id, 20.0)
    await node.client.submit(assignment, None, deadline_s=5)
    await pair.until(lambda: node.service.attempts.ended.get("length", 0))


async def read_too_late(plans: Plans, pair: Pair) -> list[int]:
    """The lease ends while its reader is late, and the blocks are used for another prompt."""
    plans.now = FaultPlan(reads="stall")
    asking = asyncio.create_task(pair.ask(PROMPT, NUM_TOKENS))
    service = pair.prefill.service
    await pair.until(lambda: service.leases and service.attempts.all()[0].events.empty())
    computed = pair.prefill.engine.counters
    await pair.until(lambda: computed.context_tokens >= len(PROMPT))
    await pair.until(lambda: pair.decode.receiver.num_in_flight >= 4)
    sequence = service.attempts.all()[0].sequence
    service.leases.abandon(sequence.lease_id, sequence.attempt)
    await compute_on_prefill(pair)
    plans.now = FaultPlan()
    return (await asking).tokens


async def test_a_late_reader_is_served_the_wrong_bytes_without_fence_and_checksum(
    plans: Plans,
) -> None:
    async with opened(plans, checksum=False, service=VouchesForAll) as pair:
        tokens = await read_too_late(plans, pair)
        assert tokens != expected_tokens(PROMPT, NUM_TOKENS)
        assert not pair.journeys.counters.failures, "and nobody notices"


async def test_the_fence_catches_a_late_reader(plans: Plans) -> None:
    async with opened(plans, checksum=False) as pair:
        tokens = await read_too_late(plans, pair)
        assert tokens == expected_tokens(PROMPT, NUM_TOKENS)
        assert pair.journeys.counters.failures == {"fenced": 1}
        assert pair.decode.service.fences.refusals[Use.AFTER_READ, StaleKind.LEASE] == 1
        await pair.settled()


async def test_the_checksum_catches_a_late_reader(plans: Plans) -> None:
    async with opened(plans, service=VouchesForAll) as pair:
        tokens = await read_too_late(plans, pair)
        assert tokens == expected_tokens(PROMPT, NUM_TOKENS)
        assert pair.journeys.counters.failures == {"transfer": 1}
        assert pair.decode.service.status_now().counters["fence_after_read/content"] > 0
        await pair.settled()


async def leave_while_it_is_read(plans: Plans, pair: Pair) -> None:
    """The client goes away while the blocks of its prompt are on their way, for a while yet."""
    plans.now = FaultPlan(reads="stall")
    asking = asyncio.create_task(pair.ask(PROMPT, NUM_TOKENS))
    await pair.until(lambda: pair.decode.receiver.num_in_flight >= 4)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await pair.until(lambda: not len(pair.decode.service.attempts))


async def write_while_it_arrives(plans: Plans, pair: Pair) -> list[int]:
    """An answer of the decode worker alone, begun before the late read has ended."""
    pair.decode.runner.step_seconds = 0.03
    pair.show(pair.decode)
    begun = asyncio.Event()
    writing = asyncio.create_task(pair.ask(OTHER_PROMPT, 16, on_token=lambda answer: begun.set()))
    blocked = asyncio.create_task(asyncio.sleep(0.5))
    begin = asyncio.create_task(begun.wait())
    await asyncio.wait({begin, blocked}, return_when=asyncio.FIRST_COMPLETED)
    plans.now = FaultPlan()  # now the bytes arrive, wherever their blocks are
    tokens = (await writing).tokens
    blocked.cancel()
    return tokens


async def test_a_late_read_destroys_an_answer_without_quarantine(plans: Plans) -> None:
    async with opened(plans, receiver=ForgetsReads) as pair:
        await leave_while_it_is_read(plans, pair)
        assert await write_while_it_arrives(plans, pair) != expected_tokens(OTHER_PROMPT, 16)


async def test_blocks_stay_in_quarantine_until_the_late_read_has_ended(plans: Plans) -> None:
    async with opened(plans) as pair:
        await leave_while_it_is_read(plans, pair)
        landing = pair.decode.engine.cache.pool.counts()[BlockState.LANDING]
        assert landing >= 8, "nobody waits for them, and nobody gets them"
        assert await write_while_it_arrives(plans, pair) == expected_tokens(OTHER_PROMPT, 16)
        await pair.settled(pair.decode)
