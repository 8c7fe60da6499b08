"""Who runs in a step: the reference scenarios with beams, drafts and micro-batches, and the rules.

Requests are written "prompt + answer". `Steps` runs nothing but the second level of the scheduler.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from engine_parts import make_scheduler, make_sequence
from hypothesis import given
from hypothesis import strategies as st

from segue.workers.scheduler.chunking import ChunkingPolicy
from segue.workers.scheduler.microbatch import MicroBatch, StepBudget, select
from segue.workers.scheduler.plan import Reason
from segue.workers.sequence import Sequence

WHOLE = ChunkingPolicy.NO_CHUNKING
FCFS = ChunkingPolicy.FIRST_COME_FIRST_SERVED
EQUAL = ChunkingPolicy.EQUAL_PROGRESS


def request(number: int, prompt: int, answer: int, *, beams: int = 1, drafts: int = 0) -> Sequence:
    sequence = make_sequence(str(number), [number] * prompt, answer)
    sequence.beam_width, sequence.num_drafts = beams, drafts
    return sequence


def budget(
    tokens: int,
    chunking: ChunkingPolicy,
    *,
    width: int = 1,
    batch: int | None = None,
    unit: int = 1,
) -> StepBudget:
    return StepBudget(tokens, tokens, unit, chunking, unit, width, batch)


@dataclass
class Steps:
    """`in_flight` steps are under way while the next one is chosen. All drafts are rejected."""

    budget: StepBudget
    active: list[Sequence]
    in_flight: int = 0
    under_way: list[tuple[Sequence, ...]] = field(default_factory=list)

    def next(self) -> MicroBatch:
        batch = select(
            [s for s in self.active if s.num_computed < s.num_prompt],
            tuple(s for s in self.active if s.num_computed >= s.num_prompt),
            self.budget,
            {sequence for step in self.under_way for sequence in step},
        )
        for chunk in batch.context:
            chunk.sequence.num_computed = chunk.end
            if chunk.samples:
                chunk.sequence.tokens.append(0)
        for sequence in batch.generation:
            sequence.num_computed += 1
            sequence.tokens.append(0)
        self.active = [s for s in self.active if s.num_produced < s.request.stop.max_tokens]
        ran = (*(chunk.sequence for chunk in batch.context), *batch.generation)
        self.under_way = [*self.under_way, ran][-self.in_flight :] if self.in_flight else []
        return batch

    def all(self) -> list[str]:
        """The names of those that run, step by step, until all have ended."""
        steps = []
        while self.active:
            steps.append(names(self.next()))
            assert len(steps) < 1000
        return steps


def names(batch: MicroBatch) -> str:
    ran = [*(chunk.sequence for chunk in batch.context), *batch.generation]
    return "".join(sorted(sequence.request.request_id for sequence in ran))


def test_one_step_holds_one_context_and_two_generations() -> None:
    """12 tokens, 4 x (10+10): no context fits beside three generations."""
    steps = Steps(budget(12, WHOLE, batch=4), [request(n, 10, 10) for n in range(4)]).all()
    assert steps == ["0", "01", *["012"] * 8, "123", "23", *["3"] * 8]


def test_four_beams_take_four_tokens() -> None:
    """15 tokens, 4 x (10+10): no third one fits beside two generations of four beams each."""
    requests = [request(n, 10, 10, beams=4) for n in range(4)]
    steps = Steps(budget(15, WHOLE, width=4, batch=4), requests).all()
    assert steps == ["0", *["01"] * 9, "12", *["23"] * 9, "3"]


def test_drafts_of_contexts_count() -> None:
    """4096 tokens, 4 x (1024+10) with 17 drafts: the fourth waits a step."""
    requests = [request(n, 1024, 10, drafts=17) for n in range(4)]
    run = Steps(budget(4096, WHOLE, width=18, batch=64), requests)
    first = run.next()
    assert (names(first), first.num_tokens) == ("012", 3 * 1041)
    assert set(first.drafts.values()) == {17}
    assert run.all() == [*["0123"] * 9, "3"]


def test_drafts_of_generations_count() -> None:
    """128 tokens, generations of 1 + 63: two in each step."""
    run = Steps(budget(128, WHOLE, width=64, batch=64), [request(n, 2, 2) for n in range(4)])
    assert names(run.next()) == "0123"
    for sequence in run.active:
        sequence.num_drafts = 63
    assert run.all() == ["01", "23"]


def test_drafts_that_do_not_fit_are_given_up() -> None:
    """8192 tokens in units of 64, 4 x 2041 with 8 drafts: 7 fill the last unit of each."""
    requests = [request(n, 2041, 9, drafts=8) for n in range(4)]
    batch = Steps(budget(8192, FCFS, width=9, unit=64), requests).next()
    assert [batch.drafts[sequence] for sequence in requests] == [7] * 4
    assert batch.num_tokens == 4 * 2048


def test_all_drafts_are_kept_where_everything_fits() -> None:
    requests = [request(n, 25, 9, drafts=5) for n in range(2)]
    batch = Steps(budget(60, FCFS, width=6, unit=5), requests).next()
    assert (batch.num_tokens, [*batch.drafts.values()]) == (60, [5, 5])


def test_another_beam_width_is_passed() -> None:
    """It takes no slot, and those behind it run."""
    generations = [request(0, 2, 9, beams=2), request(1, 2, 9), request(2, 2, 9, beams=2)]
    for sequence in generations:
        sequence.num_computed = 2
        sequence.tokens.append(0)
    batch = select([], tuple(generations), budget(100, FCFS, width=2, batch=2))
    assert (names(batch), batch.num_generation_tokens) == ("02", 4)
    assert names(select([], tuple(generations[1:]), budget(100, FCFS, width=2))) == "1"


def test_two_micro_batches_take_turns() -> None:
    """2 sequences a step, 4 x (10+80), one step under way: 0 and 1, then 2 and 3, and so on."""
    requests = [request(n, 10, 80) for n in range(4)]
    steps = Steps(budget(1000, WHOLE, batch=2), requests, in_flight=1).all()
    assert steps == ["01", "23"] * 80


def test_without_anything_in_flight_the_first_two_run_to_their_end() -> None:
    requests = [request(n, 10, 80) for n in range(4)]
    assert Steps(budget(1000, WHOLE, batch=2), requests).all() == ["01"] * 80 + ["23"] * 80


def test_a_prompt_goes_on_beside_a_generation() -> None:
    """7 tokens in units of 5, EQUAL_PROGRESS, 2 x (12+5): the positions after each step."""
    requests = [request(n, 12, 5) for n in range(2)]
    run = Steps(budget(7, EQUAL, batch=2, unit=5), requests)
    positions = []
    while run.active:
        run.next()
        positions.append(tuple((min(s.num_computed, 12), s.num_produced) for s in requests))
    assert positions == [
        ((5, 0), (0, 0)),
        ((12, 1), (0, 0)),
        ((12, 2), (5, 0)),
        ((12, 3), (10, 0)),
        ((12, 4), (12, 1)),
        ((12, 5), (12, 2)),
        ((12, 5), (12, 3)),
        ((12, 5), (12, 4)),
        ((12, 5), (12, 5)),
    ]


def test_who_gets_no_chunk_is_not_in_the_step() -> None:
    """A step of 20 in units of 20: the second has to wait, and is told why."""
    batch = select([request(n, 25, 1) for n in range(2)], (), budget(20, FCFS, unit=20))
    assert names(batch) == "0"
    told = {d.attempt.request_id: str(d) for d in batch.decisions}
    assert told == {"0": "chunked (20 of 25)", "1": Reason.TOKEN_BUDGET.value}


def test_in_each_part_of_the_step_adapters_stand_together() -> None:
    contexts = [request(n, size, 1) for n, size in enumerate((4, 4, 9, 4, 9, 4))]
    for sequence, adapter in zip(contexts, ("b", "a", "b", None, "a", "b"), strict=True):
        sequence.adapter = adapter
    batch = select(contexts, (), budget(29, EQUAL, unit=5))
    order = [chunk.sequence.request.request_id for chunk in batch.context]
    assert order == ["4", "2", "3", "1", "0", "5"]  # those that go on, then those that end


def test_the_scheduler_refuses_steps_that_would_leave_out_a_generation() -> None:
    scheduler = make_scheduler()
    for unfit in (budget(32, FCFS, width=2, unit=4), budget(32, FCFS, batch=2, unit=4)):
        with pytest.raises(ValueError, match="run in every step"):
            type(scheduler)(scheduler.cache, unfit, scheduler.settings)
    with pytest.raises(ValueError, match="never fit a step of 8"):
        budget(8, FCFS, width=9)
    with pytest.raises(ValueError, match="max_batch_size must be at least 1"):
        budget(8, FCFS, batch=0)


sequences = st.builds(
    lambda prompt, computed, beams, drafts, adapter: (prompt, computed, beams, drafts, adapter),
    prompt=st.integers(1, 40),
    computed=st.integers(0, 45),
    beams=st.sampled_from([1, 1, 2, 4]),
    drafts=st.integers(0, 4),
    adapter=st.sampled_from([None, None, "a", "b"]),
)


def made(number: int, shape: tuple[int, int, int, int, str | None]) -> Sequence:
    prompt, computed, beams, drafts, adapter = shape
    sequence = request(number, prompt, 60, beams=beams, drafts=drafts)
    sequence.adapter = adapter
    sequence.num_computed = computed
    if computed >= prompt:
        sequence.tokens += [0] * (computed + 1 - prompt)
    return sequence


@given(
    st.lists(sequences, max_size=10),
    st.integers(8, 60),
    st.sampled_from([*ChunkingPolicy]),
    st.none() | st.integers(1, 6),
    st.sampled_from([1, 4]),
    st.sets(st.integers(0, 9)),
)
def test_a_step_never_holds_more_than_it_may(
    shapes: list[tuple[int, int, int, int, str | None]],
    tokens: int,
    chunking: ChunkingPolicy,
    batch: int | None,
    unit: int,
    away: Collection[int],
) -> None:
    active = [made(number, shape) for number, shape in enumerate(shapes)]
    contexts = [s for s in active if s.num_computed < s.num_prompt]
    generations = tuple(s for s in active if s.num_computed >= s.num_prompt)
    in_flight = {s for number, s in enumerate(active) if number in away}
    step = select(
        contexts, generations, budget(tokens, chunking, width=8, batch=batch, unit=unit), in_flight
    )
    ran = [*(chunk.sequence for chunk in step.context), *step.generation]
    assert len(set(ran)) == len(ran) and not in_flight & set(ran)
    assert step.num_tokens <= tokens
    assert step.num_generation_tokens == sum(s.step_width for s in step.generation)
    assert batch is None or len(ran) <= batch
    assert len({s.beam_width for s in step.generation}) <= 1
    ends = [chunk.samples for chunk in step.context]
    assert ends == sorted(ends)
    for chunk in step.context:
        assert chunk.start == chunk.sequence.num_computed < chunk.end <= chunk.sequence.num_prompt
    assert all(step.drafts[s] <= s.num_drafts for s in step.drafts)
    assert {s for s in step.drafts} <= {c.sequence for c in step.context if c.samples}
    free = [s for s in generations if s not in in_flight]
    if free:  # the first of them always runs
        assert free[0] in step.generation
    elif [c for c in contexts if c not in in_flight] and chunking is not WHOLE:
        assert step.context
