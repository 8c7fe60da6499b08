"""The last chunk of a prompt in groups of layers, told and read while it is computed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from engine_parts import expected_tokens
from fault_plan import FaultPlan
from faulty_transport import FaultyTransport
from model_in_pair import models_in_pair
from worker_pair import NodeKind, PagedRunner, Pair, worker_pair

from segue.cluster.config import TransferConfig
from segue.cluster.errors import AttemptFailed, FailureKind, StaleReference, Unavailable
from segue.cluster.handoff import Announcement, Assignment, Reservation
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.kvtransfer.loopback_transport import Faults, LoopbackFabric, LoopbackTransport
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.kvtransfer.transport import Transport
from segue.workers.batch import PackedBatch
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.service import WorkerService
from segue.workers.step_execution import LayerNews

NUM_LAYERS = 6
PROMPT = range(30)  # 8 blocks, the last two of them in the last chunk
SOMEBODY = Peer(WorkerIdentity("prefill-0", "cafe"), "127.0.0.1:1")


class Hears(WorkerService):
    """Keeps what was announced to it."""

    heard: list[Announcement]

    async def announce(self, announcement: Announcement) -> None:
        self.heard = [*getattr(self, "heard", ()), announcement]
        await super().announce(announcement)


@dataclass(slots=True)
class Reads:
    """What goes wrong in the reads of the target."""

    make: Callable[[LoopbackFabric, str], Transport] = LoopbackTransport
    now: FaultPlan = field(default_factory=FaultPlan)

    def transport(self, fabric: LoopbackFabric, name: str) -> Transport:
        return FaultyTransport(self.make(fabric, name), lambda: self.now)


@asynccontextmanager
async def opened(
    reads: Reads | None = None,
    *,
    layer_groups: int = 3,
    checksum: bool = True,
    runner: Callable[[int, int | None], PagedRunner] | None = None,
    max_attempts: int = 1,
    read_timeout_s: float = 5.0,
) -> AsyncIterator[Pair]:
    transfer = TransferConfig(
        transport="loopback",
        layer_groups=layer_groups,
        checksum=checksum,
        read_timeout_s=read_timeout_s,
    )
    kind = NodeKind(
        service=Hears,
        transport=(reads or Reads()).transport,
        runner=runner or (lambda blocks, groups: PagedRunner(blocks, NUM_LAYERS, groups)),
        chunk=8 if runner is None else 32,
    )
    async with worker_pair(
        transfer, max_attempts=max_attempts, prefill_kind=kind, decode_kind=kind
    ) as pair:
        yield pair


def heard(pair: Pair) -> list[Announcement]:
    service = pair.decode.service
    assert isinstance(service, Hears)
    return service.heard


def moved(pair: Pair) -> dict[str, int]:
    decode = pair.decode.service.decode
    return {
        "announced": decode.bytes_announced,
        "read": pair.decode.receiver.kv_bytes_read,
    }


@pytest.mark.parametrize("length", [1, 4, 5, 8, 9, 30, 33])
async def test_tokens_are_those_of_one_worker(length: int) -> None:
    async with opened() as pair:
        prompt = list(range(length))
        answer = await pair.ask(prompt, 7)
        assert answer.tokens == expected_tokens(prompt, 7)
        await pair.settled()
        parts = [a for a in heard(pair) if a.is_part]
        last = heard(pair)[-1]
        assert [(a.first_layer, a.stop_layer) for a in parts] == [(0, 2), (2, 4), (4, 6)]
        assert last.first_layer == 6 and last.first_token is not None
        assert all(
            (a.first_block, a.block_ids) == (last.first_block, last.block_ids) for a in parts
        )
        num_bytes = -(-length // 4) * pair.decode.block_bytes
        assert moved(pair) == {"announced": num_bytes, "read": num_bytes}
        assert pair.prefill.service.leases.verdicts == {"held": 1}


def until_read(pair: Pair, num_bytes: int) -> None:
    """In an engine thread: the step does not go on before so much has arrived at the target."""
    end = time.monotonic() + 10.0
    while pair.decode.receiver.kv_bytes_read < num_bytes:
        assert time.monotonic() < end, "it does not come before the step ends"
        time.sleep(0.002)


async def test_all_layers_arrive_before_the_step_is_done() -> None:
    async with opened() as pair:
        whole, layer = pair.decode.block_bytes, pair.decode.runner.layout.layer_bytes

        def wait_for_them(num_layers: int) -> None:
            until_read(pair, 6 * whole + 2 * num_layers * layer)

        pair.prefill.runner.on_told = wait_for_them
        answer = await pair.ask(PROMPT, 5)
        assert answer.tokens == expected_tokens(PROMPT, 5)
        decode = pair.decode.service.decode
        assert decode.bytes_overlapped == decode.bytes_announced == 8 * whole
        await pair.settled()


@pytest.mark.parametrize("checksum", [True, False])
async def test_a_part_that_is_later_than_the_end_is_waited_for(checksum: bool) -> None:
    async with opened(checksum=checksum) as pair:
        receiver = pair.decode.receiver

        def delay_the_first(num_layers: int) -> None:
            end = time.monotonic() + 10.0
            while not receiver.num_in_flight and num_layers == 2 and time.monotonic() < end:
                time.sleep(0.002)
            pair.fabric.set_faults(Faults())

        pair.prefill.runner.on_told = delay_the_first
        pair.fabric.set_faults(Faults(delay_seconds=0.3))
        answer = await pair.ask(range(8), 5)
        assert answer.tokens == expected_tokens(range(8), 5)
        decode = pair.decode.service.decode
        assert decode.bytes_overlapped < decode.bytes_announced, "the first part came last"
        await pair.settled()


async def test_many_at_once_are_each_their_own() -> None:
    async with opened(layer_groups=2) as pair:
        prompts = [[i, *range(40, 40 + i)] for i in range(1, 13)]
        answers = await asyncio.gather(*(pair.ask(prompt, 6) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == expected_tokens(prompt, 6)
        again = await pair.ask(prompts[-1], 6)  # and with what the target holds already
        assert again.tokens == expected_tokens(prompts[-1], 6)
        assert again.cached_tokens
        await pair.settled()


async def test_a_first_token_that_ends_the_answer_gives_the_parts_back() -> None:
    async with opened() as pair:
        (first,) = expected_tokens(range(9), 1)
        answer = await pair.ask(range(9), 10, stop=frozenset({first}))
        assert answer.tokens == [first]
        assert pair.prefill.runner.told == [2, 4, 6]
        await pair.settled()


@pytest.mark.parametrize("checksum", [True, False])
async def test_a_step_that_fails_after_parts_were_told_leaves_nothing(checksum: bool) -> None:
    async with opened(checksum=checksum) as pair:
        pair.prefill.runner.poison = {29}
        with pytest.raises(AttemptFailed, match="cannot take"):
            await pair.ask(PROMPT, 5)
        assert pair.prefill.runner.told == [2, 4, 6]
        await pair.settled()


class FailsOnce(PagedRunner):
    """Breaks behind its news of layers, once, in a step of several sequences; what it had computed
    by then, and what was read of it, is not what it computes when it is asked again."""

    def __init__(self, num_blocks: int, layer_groups: int | None) -> None:
        super().__init__(num_blocks, NUM_LAYERS, layer_groups)
        self.has_failed = False

    def execute(self, batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
        if on_layers is None or self.has_failed or len(batch.slices) < 2:
            return super().execute(batch, on_layers)
        self.has_failed = True
        for layer in range(4):
            self._write(batch, layer)
        for piece in batch.slices:
            self.memory[list(piece.block_ids), :4] += 7
        on_layers(4)
        self.on_told(4)
        raise RuntimeError("no memory for the last layers")


@pytest.mark.parametrize("checksum", [True, False])
async def test_a_step_that_is_repeated_has_its_parts_read_again(checksum: bool) -> None:
    async with opened(checksum=checksum, runner=FailsOnce) as pair:
        runner, engine, block = pair.prefill.runner, pair.prefill.engine, pair.decode.block_bytes
        layer = pair.decode.runner.layout.layer_bytes
        assert isinstance(runner, FailsOnce)
        runner.gate.clear()
        prompts = range(3), range(50, 55), range(70, 77)
        asked = [asyncio.create_task(pair.ask(prompts[0], 5))]
        await pair.until(lambda: engine.recorder.unfinished is not None)
        asked += [asyncio.create_task(pair.ask(prompt, 5)) for prompt in prompts[1:]]
        await pair.until(lambda: len(pair.prefill.service.leases) == 3)

        def before_it_breaks(told: int) -> None:
            if runner.has_failed:
                until_read(pair, block + (2 + 2) * told * layer)

        runner.on_told = before_it_breaks
        runner.gate.set()
        answers = [answer.tokens for answer in await asyncio.gather(*asked)]
        assert runner.has_failed
        assert answers == [expected_tokens(prompt, 5) for prompt in prompts]
        last = [a for a in heard(pair) if not a.is_part]
        assert sorted(a.first_layer for a in last) == [0, 0, 6]
        assert not pair.journeys.counters.failures
        await pair.settled()


@pytest.mark.parametrize("transport", ["loopback", "nixl"])
async def test_a_part_that_is_spoilt_on_its_way_is_caught(transport: str) -> None:
    reads = Reads(TRANSPORTS[transport])
    async with opened(reads, max_attempts=2) as pair:
        layer = pair.decode.runner.layout.layer_bytes

        def spoil_the_first(num_layers: int) -> None:
            if not pair.journeys.counters.failures:
                until_read(pair, 2 * num_layers * layer)
            reads.now = FaultPlan()

        pair.prefill.runner.on_told = spoil_the_first
        pair.prefill.runner.gate.clear()
        asking = asyncio.create_task(pair.ask(range(8), 5))
        await pair.until(lambda: len(pair.prefill.service.leases))
        reads.now = FaultPlan(reads="corrupt")
        pair.prefill.runner.gate.set()
        assert (await asking).tokens == expected_tokens(range(8), 5)
        assert pair.journeys.counters.failures == {"transfer": 1}
        assert pair.decode.receiver.num_corrupt_blocks == 2
        await pair.settled()


@pytest.mark.parametrize("transport", ["loopback", "nixl"])
async def test_the_blocks_of_a_part_that_stalls_are_quarantined(transport: str) -> None:
    reads = Reads(TRANSPORTS[transport])
    async with opened(reads, read_timeout_s=0.5) as pair:
        pair.prefill.runner.gate.clear()
        asking = asyncio.create_task(pair.ask(range(8), 5))
        await pair.until(lambda: len(pair.prefill.service.leases))
        reads.now = FaultPlan(reads="stall")
        pair.prefill.runner.gate.set()
        with pytest.raises(Unavailable, match="did not finish within its time"):
            await asking
        await pair.until(lambda: not len(pair.decode.service.attempts))
        await asyncio.sleep(0.05)
        assert pair.decode.engine.cache.pool.counts()[BlockState.LANDING] == 2
        assert pair.decode.receiver.num_overdue == 3
        reads.now = FaultPlan()
        await pair.settled()


@pytest.mark.parametrize("stage", [2, 4])
async def test_an_aborted_request_gives_back_the_parts_it_was_told(stage: int) -> None:
    async with opened() as pair:
        reached = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_told(num_layers: int) -> None:
            if num_layers == stage:
                loop.call_soon_threadsafe(reached.set)
                time.sleep(0.05)

        pair.prefill.runner.on_told = on_told
        asking = asyncio.create_task(pair.ask(PROMPT, 5))
        await reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await pair.settled()
        assert not pair.prefill.engine.counters.failed_commands, "nothing is given back twice"


async def test_a_lease_that_ended_between_the_parts_is_noticed() -> None:
    async with opened(max_attempts=2) as pair:
        loop = asyncio.get_running_loop()
        service = pair.prefill.service

        def end_lease(num_layers: int) -> None:
            if num_layers != 4 or pair.journeys.counters.failures:
                return
            until_read(
                pair, 6 * pair.decode.block_bytes + 8 * pair.decode.runner.layout.layer_bytes
            )
            (running,) = service.attempts.all()
            sequence = running.sequence
            ended = asyncio.run_coroutine_threadsafe(
                abandon(sequence.lease_id, sequence.attempt), loop
            )
            ended.result(5)

        async def abandon(lease_id: str, attempt: AttemptId) -> None:
            service.leases.abandon(lease_id, attempt)

        pair.prefill.runner.on_told = end_lease
        answer = await pair.ask(PROMPT, 5)
        assert answer.tokens == expected_tokens(PROMPT, 5)
        assert sum(pair.journeys.counters.failures.values()) == 1
        assert all(a.is_part or a.block_ids for a in heard(pair)), "and no end was announced"
        await pair.settled()


PART = Announcement(SOMEBODY, AttemptId("r", 1), 1, 0, (0, 1), (), first_layer=0, stop_layer=2)


@pytest.mark.parametrize(
    "announced",
    [
        (replace(PART, first_layer=1),),
        (PART, replace(PART, first_layer=3, stop_layer=4)),
        (PART, replace(PART, first_layer=1, stop_layer=4)),
        (replace(PART, stop_layer=4), replace(PART, first_layer=2, stop_layer=3)),
        (PART, replace(PART, block_ids=(0, 2), first_layer=2, stop_layer=4)),
        (PART, replace(PART, block_ids=(0, 1, 2), first_layer=2, stop_layer=None)),
        (PART, replace(PART, block_ids=(0,), first_layer=2, stop_layer=None)),
        (PART, replace(PART, first_layer=3, stop_layer=None)),
        (PART, replace(PART, first_block=2, first_layer=2, stop_layer=4)),
        (replace(PART, stop_layer=7),),
        (replace(PART, stop_layer=6), replace(PART, first_layer=6, stop_layer=7)),
        (replace(PART, first_layer=6, stop_layer=None),),
        (PART, replace(PART, pool_generation=2, first_layer=2, stop_layer=4)),
    ],
    ids=[
        "begins late",
        "a gap",
        "an overlap",
        "fewer than before",
        "another block",
        "more blocks",
        "fewer blocks",
        "a gap before the end",
        "other places",
        "too many layers",
        "more than all layers",
        "nothing but the end",
        "another generation",
    ],
)
async def test_parts_that_contradict_each_other(announced: tuple[Announcement, ...]) -> None:
    async with opened() as pair:
        request = GenerationRequest(
            "r", tuple(PROMPT), SamplingParams(temperature=0.0), StopRule(5)
        )
        assignment = Assignment(request, 1, (), pair.links.gateway_id, 20.0)
        asked = Reservation(assignment, pair.prefill.peer, "lease-r", 5.0)
        inbox = pair.links.open_inbox(assignment.attempt_id, [pair.decode.identity])
        await pair.decode.client.reserve(asked, deadline_s=5)
        for each in announced:
            sent = replace(each, source=pair.prefill.peer)
            try:
                await pair.decode.client.announce(sent, deadline_s=5)
            except StaleReference:  # it may have failed already
                break
        async with asyncio.timeout(5):
            event = await inbox.events.get()
        delta = getattr(event, "delta", None)
        assert delta is not None and delta.failure is not None
        assert delta.failure.kind in (FailureKind.TRANSFER, FailureKind.FENCED)
        await pair.settled()


class Stutters(Hears):
    """Every announcement comes twice."""

    async def announce(self, announcement: Announcement) -> None:
        await super().announce(announcement)
        try:
            await super().announce(announcement)
        except StaleReference:
            """It has landed meanwhile."""


async def test_parts_that_come_twice_are_read_once() -> None:
    transfer = TransferConfig(transport="loopback", layer_groups=3)
    kind = NodeKind(
        service=Stutters, runner=lambda blocks, groups: PagedRunner(blocks, NUM_LAYERS, groups)
    )
    async with worker_pair(transfer, prefill_kind=kind, decode_kind=kind) as pair:
        answer = await pair.ask(PROMPT, 5)
        assert answer.tokens == expected_tokens(PROMPT, 5)
        assert len(heard(pair)) == 2 * 7
        num_bytes = 8 * pair.decode.block_bytes
        assert moved(pair) == {"announced": num_bytes, "read": num_bytes}
        await pair.settled()


TRANSPORTS: dict[str, Callable[[LoopbackFabric, str], Transport]] = {
    "loopback": LoopbackTransport,
    "nixl": lambda fabric, name: NixlTransport(name),
}
LENGTHS = (1, 15, 16, 17, 40)


async def texts(
    folder: Path, stored: str, transport: str, layer_groups: int
) -> tuple[list[list[int]], list[int]]:
    """What a real model says, first with nothing cached, then with what the target holds."""
    runner = models_in_pair(folder, stored)
    prompts = [[(7 * at + length) % 96 for at in range(length)] for length in LENGTHS]
    async with opened(
        Reads(TRANSPORTS[transport]), layer_groups=layer_groups, runner=runner
    ) as pair:
        found = [(await pair.ask(prompt, 6)).tokens for prompt in (*prompts, *prompts)]
        assert sum(a.is_part for a in heard(pair)) == layer_groups * len(found) * (layer_groups > 1)
        assert moved(pair)["announced"] == moved(pair)["read"]
        await pair.settled()
        return found, pair.prefill.runner.told


@pytest.mark.parametrize("stored", ["auto", "int8"])
async def test_a_real_model_says_the_same_with_any_number_of_groups(
    tmp_path: Path, stored: str
) -> None:
    whole, told = await texts(tmp_path, stored, "loopback", 1)
    assert told == [] and len({tuple(text) for text in whole}) > 3
    for transport in TRANSPORTS:
        for layer_groups, ends in ((2, [3, 6]), (3, [2, 4, 6])):
            found, told = await texts(tmp_path, stored, transport, layer_groups)
            assert found == whole
            assert told == ends * len(found)
