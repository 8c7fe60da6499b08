"""The last chunk of a prompt in groups of layers, told and read while it is computed."""

import asyncio
import time
from pathlib import Path

import pytest
from engine_parts import expected_tokens
from layer_rig import NUM_LAYERS, PROMPT, TRANSPORTS, Hears, Reads, heard, moved, opened, until_read
from model_in_pair import models_in_pair
from worker_pair import NodeKind, PagedRunner, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import StaleReference
from segue.cluster.handoff import Announcement
from segue.kvtransfer.loopback_transport import Faults


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
