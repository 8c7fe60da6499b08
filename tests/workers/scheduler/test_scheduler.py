"""Capacity and micro-batch: first come first served, budgets, chunks, and progress always."""

import pytest
from engine_parts import make_scheduler, make_sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.workers.scheduler.microbatch import StepBudget, tokens_to_compute
from segue.workers.scheduler.plan import Reason
from segue.workers.scheduler.scheduler import Scheduler


def run(scheduler: Scheduler, max_steps: int = 1000) -> list[dict[str, int]]:
    """Compute every plan in thought; returns the tokens each request ran in each step."""
    steps: list[dict[str, int]] = []
    while scheduler.waiting or scheduler.num_admitted:
        plan = scheduler.schedule()
        assert not plan.is_empty, "something waits and nothing runs"
        assert len(steps) < max_steps
        budget = scheduler.budget
        assert plan.num_tokens <= budget.max_num_batched_tokens
        assert scheduler.num_admitted <= scheduler.max_num_seqs
        steps.append({})
        for item in (*plan.context, *plan.generation):
            sequence = item.sequence
            steps[-1][sequence.request.request_id] = item.num_tokens
            scheduler.cache.extend(sequence, item.end)
            sequence.num_computed = item.end
            scheduler.cache.publish(sequence)
            if not item.samples:
                assert item.end % budget.block_size == 0
                continue
            sequence.tokens.append(0)
            if sequence.num_produced == sequence.request.stop.max_tokens:
                scheduler.remove(sequence)
                scheduler.cache.free(sequence)
            else:
                scheduler.start_generation(sequence)
        scheduler.cache.check_integrity(scheduler.sequences())
    return steps


def test_context_is_chunked_and_decodes_go_on() -> None:
    scheduler = make_scheduler(max_tokens=9, chunk=8)
    scheduler.add(make_sequence("short", [1, 2], 6))
    scheduler.add(make_sequence("long", range(20), 1))
    steps = run(scheduler)
    assert steps[:4] == [
        {"short": 2, "long": 4},  # 7 tokens are left, rounded down to a block
        {"short": 1, "long": 8},
        {"short": 1, "long": 8},
        {"short": 1},
    ]


def test_strict_fifo_a_small_one_may_not_pass_the_head() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    scheduler.add(make_sequence("a", range(8), 5))  # 3 blocks
    scheduler.add(make_sequence("big", range(50, 62), 5))  # 4 blocks
    scheduler.add(make_sequence("small", [9], 1))  # would fit at once
    plan = scheduler.schedule()
    assert [(d.attempt.request_id, d.reason) for d in plan.decisions] == [
        ("a", Reason.ADMITTED),
        ("big", Reason.NO_BLOCKS),
        ("small", Reason.BEHIND_HEAD),
    ]
    assert set(scheduler.held.values()) == {Reason.NO_BLOCKS, Reason.BEHIND_HEAD}


def test_batch_full_is_said() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("a", [1], 2))
    scheduler.add(make_sequence("b", [2], 2))
    assert scheduler.schedule().decisions[1].reason is Reason.BATCH_FULL


@pytest.mark.parametrize(
    ("start", "context", "limit", "expected"),
    [
        (0, 10, 100, 10),
        (0, 10, 10, 10),
        (0, 10, 9, 8),
        (0, 10, 3, 0),
        (8, 10, 2, 2),
        (8, 20, 7, 4),
        (4, 5, 1, 1),
    ],
)
def test_tokens_to_compute(start: int, context: int, limit: int, expected: int) -> None:
    assert tokens_to_compute(start, context, limit, 4) == expected


def test_a_budget_that_could_never_run_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size <= chunk_size"):
        StepBudget(max_num_batched_tokens=8, chunk_size=16, block_size=4)
    with pytest.raises(ValueError, match="max_num_seqs"):
        make_scheduler(max_num_seqs=40, max_tokens=32)


requests = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(requests, st.integers(13, 30), st.integers(1, 6), st.sampled_from([4, 8, 16]))
def test_everybody_ends_in_order_of_admission(
    shapes: list[tuple[int, int]], num_blocks: int, seqs: int, chunk: int
) -> None:
    scheduler = make_scheduler(
        num_blocks=num_blocks, block_size=4, max_num_seqs=seqs, max_tokens=16, chunk=chunk
    )
    for index, (prompt, answer) in enumerate(shapes):
        scheduler.add(make_sequence(str(index), [index] * prompt, answer))
    steps = run(scheduler)
    ran = [list(step) for step in steps]
    first_run = {name: next(i for i, step in enumerate(ran) if name in step) for name in ran[0]}
    assert first_run and {name for step in ran for name in step} == set(
        map(str, range(len(shapes)))
    )
    for index, (prompt, answer) in enumerate(shapes):
        computed = sum(step.get(str(index), 0) for step in steps)
        assert 1 <= computed <= prompt + answer - 1
    assert scheduler.cache.promised_blocks == 0
