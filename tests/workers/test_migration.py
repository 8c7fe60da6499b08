"""A running request moves from one decode worker to another: its text goes on as if it had not."""

import asyncio
from collections.abc import Sequence

from engine_parts import expected_tokens
from local_fleet import Answer
from worker_trio import NUM_TOKENS, PROMPT, TEXT, Trio

from segue.cluster.errors import SegueError
from segue.kvtransfer.loopback_transport import Faults
from segue.router.migration import Migration


async def test_the_text_goes_on_wherever_it_was(three: Trio) -> None:
    """Orders at every offset within a block, the first and the last tokens included."""
    moved = 0
    for at in (1, 2, 3, 4, 5, 6, 7, 8, 22, NUM_TOKENS - 2, NUM_TOKENS - 1):
        answer, result = await three.move(at)
        assert answer.tokens == TEXT, at
        if isinstance(result, Migration):
            moved += 1
            assert result.report is not None and result.pause_s is not None
            assert result.report.num_tokens >= len(PROMPT) + at - 1
        else:
            assert isinstance(result, SegueError), result
        await three.settled()
    assert moved >= 6, "the first may come too early, the last too late"
    assert not three.pair.journeys.counters.failures
    assert three.source.service.attempts.ended["migrated"] == moved
    assert three.target.service.attempts.ended["length"] == moved


async def test_most_of_it_is_moved_while_it_goes_on(three: Trio) -> None:
    three.pair.fabric.set_faults(Faults(delay_seconds=0.05))
    answer, result = await three.move(20)
    assert answer.tokens == TEXT
    assert isinstance(result, Migration) and result.report is not None
    report = result.report
    assert report.num_blocks_stopped <= 2 < report.num_blocks
    assert report.num_bytes == report.num_blocks * three.source.runner.layout.block_bytes
    assert report.num_tokens > len(PROMPT) + 20 + 5, "it generated while the blocks were read"
    await three.settled()


async def test_there_and_back(three: Trio) -> None:
    async def twice() -> None:
        await three.migrations.migrate("r1", "decode-1")
        await three.migrations.migrate("r1", "decode-0")

    answer, result = await three.ask(3, twice)
    assert result is None and answer.tokens == TEXT
    assert three.outcomes == {"moved": 2}
    assert three.source.service.attempts.ended == {"migrated": 1, "length": 1}
    assert three.target.service.attempts.ended == {"migrated": 1}
    await three.settled()


async def test_several_at_once(three: Trio) -> None:
    prompts = [tuple(range(i, i + 5 + i)) for i in range(5)]

    async def one(i: int, prompt: Sequence[int]) -> list[int]:
        moving: list[asyncio.Task[Migration]] = []

        def on_token(answer: Answer) -> None:
            if len(answer.tokens) == 3 + i and not moving:
                moving.append(asyncio.create_task(three.migrations.migrate(f"r{i}", "decode-1")))

        answer = await three.pair.ask(prompt, 30, request_id=f"r{i}", on_token=on_token)
        await asyncio.gather(*moving, return_exceptions=True)
        return answer.tokens

    three.pair.show(three.pair.prefill, three.source)  # all begin there
    asking = [asyncio.create_task(one(i, prompt)) for i, prompt in enumerate(prompts)]
    await three.pair.until(lambda: len(three.pair.journeys.running) == len(prompts))
    three.pair.show(three.pair.prefill, three.source, three.target)
    for prompt, task in zip(prompts, asking, strict=True):
        assert await task == expected_tokens(prompt, 30)
    await three.settled()
