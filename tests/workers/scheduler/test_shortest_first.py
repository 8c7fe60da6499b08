"""How long a prompt waits for its first token, whatever else there is to compute."""

from dataclasses import replace

import pytest
from engine_parts import make_scheduler, make_sequence
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.config.engine import EngineConfig
from segue.workers.scheduler.chunking import ChunkingPolicy, Remainder, shortest_first
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.rehearsal import Rehearsal
from segue.workers.scheduler.scheduler import Scheduler

UNIT = 4
lengths = st.lists(st.integers(1, 400), min_size=1, max_size=12)


def steps_until_ended(prompts: list[int], unit: int, capacity: int, limit: int) -> list[int]:
    """After how many steps each prompt is computed, if nothing else comes."""
    at, ended, step = [0] * len(prompts), [0] * len(prompts), 0
    while not all(ended):
        step += 1
        going = [index for index, end in enumerate(ended) if not end]
        contexts = [Remainder(at[index], prompts[index]) for index in going]
        for index, size in zip(going, shortest_first(contexts, unit, capacity, limit), strict=True):
            at[index] += size
            if at[index] == prompts[index]:
                ended[index] = step
        assert step <= 10 * sum(prompts), "nothing moves"
    return ended


@given(lengths, st.integers(2 * UNIT, 96), st.integers(UNIT, 64))
def test_a_prompt_waits_for_shorter_ones_only(
    prompts: list[int], capacity: int, limit: int
) -> None:
    """However many long ones are ahead of it, and however long they are."""
    least = max(1, min(capacity // 2, limit) - UNIT + 1)  # what a step gives the shortest
    for index, ended in enumerate(steps_until_ended(prompts, UNIT, capacity, limit)):
        shorter = [n for n in prompts if n <= prompts[index]]
        assert ended <= sum(-(-n // least) for n in shorter)


@given(lengths, st.integers(2 * UNIT, 96), st.integers(UNIT, 64))
def test_the_first_of_the_queue_gets_half_of_every_step(
    prompts: list[int], capacity: int, limit: int
) -> None:
    """So a stream of short prompts delays a long one to twice its time at most, not for ever."""
    first = min(capacity - capacity // 2, limit)
    sizes = shortest_first([Remainder(0, n) for n in prompts], UNIT, capacity, limit)
    assert sizes[0] >= min(prompts[0], first // UNIT * UNIT)


@given(lengths, st.integers(0, 96), st.integers(UNIT, 64))
def test_nothing_is_left_that_anybody_could_take(
    prompts: list[int], capacity: int, limit: int
) -> None:
    contexts = [Remainder(0, n) for n in prompts]
    sizes = shortest_first(contexts, UNIT, capacity, limit)
    left = capacity - sum(sizes)
    assert left >= 0
    unit = 1 if capacity < 2 * UNIT else UNIT
    for context, size in zip(contexts, sizes, strict=True):
        assert context.aligned(min(size + left, limit), unit) <= size


def test_a_short_prompt_behind_long_ones_by_default() -> None:
    """62 steps and more with any policy that lets a chunk of the first one fill the step."""
    engine = EngineConfig()
    budget = StepBudget(
        engine.token_budget,
        engine.chunk_size,
        engine.block_size,
        ChunkingPolicy(engine.context_chunking_policy),
    )
    scheduler = make_scheduler(
        4000, engine.block_size, max_num_seqs=engine.max_num_seqs, max_tokens=400, chunk=16
    )
    played = Rehearsal(Scheduler(scheduler.cache, budget, scheduler.settings))
    for index in range(6):
        played.scheduler.add(make_sequence(f"long-{index}", [index] * 7800, 1))
    played.step()
    played.scheduler.add(make_sequence("short", [77] * 10, 1))
    assert "short" in played.step().first_tokens
    steps = 1
    while "long-0" not in played.step().first_tokens:
        steps += 1
    assert steps <= -(-7800 // (engine.token_budget // 2 // 16 * 16)) + 1


def test_a_nearly_full_batch_leaves_a_chunk_for_a_prompt() -> None:
    """It was a token a step: 512 steps for 512 tokens."""
    engine = EngineConfig(max_num_seqs=256)
    assert engine.token_budget - 255 >= engine.chunk_size
    budget = StepBudget(engine.token_budget, engine.chunk_size, engine.block_size)
    scheduler = make_scheduler(255 * 40 + 300, 16, max_num_seqs=256, max_tokens=400, chunk=16)
    played = Rehearsal(Scheduler(scheduler.cache, budget, scheduler.settings))
    for index in range(255):
        assert played.begin(make_sequence(f"g{index}", [index] * 4, 600))
    played.scheduler.add(make_sequence("prompt", [5000] * 512, 1))
    steps = 1
    while "prompt" not in played.step().first_tokens:
        steps += 1
    assert steps <= 4


@pytest.mark.parametrize("chunking", ["first_come_first_served", "equal_progress"])
def test_less_than_a_block_is_shared_too(chunking: str) -> None:
    """What generations leave went to the first prompt alone, for as long as it took."""
    scheduler = make_scheduler(400, 4, max_num_seqs=16, max_tokens=16, chunk=8, chunking=chunking)
    played = Rehearsal(scheduler)
    for index in range(14):
        assert played.begin(make_sequence(f"g{index}", [index] * 4, 60))
    played.scheduler.add(make_sequence("a", [50] * 40, 1))
    played.scheduler.add(make_sequence("b", [60] * 40, 1))
    shares = [played.step().context for _ in range(6)]
    assert sum(end - start for each in shares for start, end in [each.get("b", (0, 0))]) > 0
    assert sum(end - start for each in shares for start, end in [each.get("a", (0, 0))]) > 0


@pytest.mark.parametrize("delay", [True, False])
def test_nobody_waits_for_a_block_of_one_that_is_kept_waiting(delay: bool) -> None:
    """An urgent prompt with the beginning of an unimportant one, amid ordinary ones that fill the
    steps: it came when the unimportant one did."""
    scheduler = make_scheduler(400, 4, max_num_seqs=16, max_tokens=16, chunk=16, ageing=30.0)
    scheduler.settings = replace(scheduler.settings, delay_for_reuse=delay)
    shared = list(range(64))
    scheduler.add(make_sequence("low", [*shared, 1], 1, priority=10))
    began: dict[str, int] = {}
    for step in range(40):
        if step == 1:
            scheduler.add(make_sequence("urgent", [*shared, 2], 1, priority=-10, arrived=0.05))
        if step >= 1:
            scheduler.add(make_sequence(f"o{step}", [100 + step] * 16, 1, arrived=0.05 * step))
        plan = scheduler.schedule()
        scheduler.cache.take_copies()
        scheduler.cache.end_copies()
        for item in plan.context:
            sequence = item.sequence
            began.setdefault(sequence.request.request_id, step)
            sequence.num_computed = item.end
            scheduler.cache.publish(sequence)
            if item.samples:
                scheduler.remove(sequence)
                scheduler.cache.free(sequence)
    assert began["urgent"] <= 2
