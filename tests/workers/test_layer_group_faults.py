"""What may go wrong between the parts of a last chunk: nothing is lost, leaked or believed."""

import asyncio
import time
from dataclasses import replace

import pytest
import torch
from attempt_events import attempt_events
from engine_parts import expected_tokens
from fault_plan import FaultPlan
from layer_rig import NUM_LAYERS, PROMPT, SOMEBODY, TRANSPORTS, Reads, heard, opened, until_read
from worker_pair import PagedRunner

from segue.cluster.errors import AttemptFailed, FailureKind, StaleReference, Unavailable
from segue.cluster.handoff import Announcement, Assignment, Reservation
from segue.cluster.identity import AttemptId
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.workers.batch import PackedBatch
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.step_execution import LayerNews


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
        inbox = attempt_events(pair.links, assignment.attempt_id, [pair.decode.identity])
        await pair.decode.client.reserve(asked, deadline_s=5)
        for each in announced:
            sent = replace(each, source=pair.prefill.peer)
            try:
                await pair.decode.client.announce(sent, deadline_s=5)
            except StaleReference:  # it may have failed already
                break
        async with asyncio.timeout(5):
            event = await inbox.get()
        delta = getattr(event, "delta", None)
        assert delta is not None and delta.failure is not None
        assert delta.failure.kind in (FailureKind.TRANSFER, FailureKind.FENCED)
        await pair.settled()
