"""The scheduler as a whole: order, reasons, plans that persist, and progress always."""

from dataclasses import dataclass, field

import pytest
from engine_parts import PEER, make_scheduler, make_sequence
from hypothesis import event, given, settings
from hypothesis import strategies as st

from segue.workers.kvcache.block_pool import BlockState
from segue.workers.scheduler.plan import Reason
from segue.workers.scheduler.rehearsal import Iteration, Rehearsal
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Phase, Sequence

POLICIES = ["guaranteed_no_evict", "max_utilization", "static_batch"]
CHUNKING = ["first_come_first_served", "equal_progress", "force_chunk"]


def test_context_is_chunked_and_decodes_go_on() -> None:
    scheduler = make_scheduler(max_tokens=9, chunk=8)
    scheduler.add(make_sequence("short", [1, 2], 6))
    scheduler.add(make_sequence("long", range(20), 1))
    rehearsal = Rehearsal(scheduler)
    steps = [rehearsal.step() for _ in range(4)]
    assert [step.context for step in steps] == [
        {"long": (0, 4), "short": (0, 2)},  # 7 tokens are left, rounded down to a block
        {"long": (4, 12)},
        {"long": (12, 20)},
        {},
    ]
    assert [step.generation for step in steps] == [(), ("short",), ("short",), ("short",)]


def test_strict_fifo_a_small_one_may_not_pass_the_head() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    scheduler.add(make_sequence("a", range(8), 4))  # 3 blocks
    scheduler.add(make_sequence("big", range(50, 62), 4))  # 4 blocks
    scheduler.add(make_sequence("small", [9], 1))  # would fit at once
    plan = scheduler.schedule()
    assert [(d.attempt.request_id, str(d)) for d in plan.decisions[:3]] == [
        ("a", "admitted"),
        ("big", "no_blocks (1 of 4)"),
        ("small", "behind_head"),
    ]
    assert list(scheduler.held.values()) == [Reason.NO_BLOCKS, Reason.BEHIND_HEAD]


def test_each_way_to_wait_has_its_reason() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.expect(make_sequence("credit", [1], 2).attempt)
    scheduler.add(make_sequence("landing", [1], 2, source=PEER))
    scheduler.add(make_sequence("b", [2], 2))
    scheduler.add(make_sequence("c", [3], 2))
    scheduler.schedule()
    assert {a.request_id: reason for a, reason in scheduler.held.items()} == {
        "credit": Reason.WAITING_FOR_CREDIT,
        "landing": Reason.WAITING_FOR_KV,
        "b": Reason.BATCH_FULL,
        "c": Reason.BEHIND_HEAD,
    }


def test_plans_tell_what_happened_between_and_in_steps() -> None:
    scheduler = make_scheduler(num_blocks=4)
    rehearsal = Rehearsal(scheduler)
    scheduler.add(make_sequence("old", range(12), 1))
    scheduler.expect(make_sequence("credit", [1], 2).attempt)
    assert rehearsal.step().news == (
        ("credit", "waiting_for_credit"),
        ("old", "admitted"),
        ("old", "chunked (8 of 12)"),
    )
    rehearsal.step()
    scheduler.add(make_sequence("new", [50] * 8, 8, source=PEER))
    assert rehearsal.step().news == (
        ("new", "admitted"),
        ("new", "waiting_for_kv"),
        ("new", "evicted (1)"),  # one block was free, one had to be given up
    )


def test_reasons_follow_the_head_of_the_queue() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("a", [1], 20))
    scheduler.add(make_sequence("b", [2], 20))
    rehearsal = Rehearsal(scheduler)
    assert rehearsal.step().held == {"b": Reason.BATCH_FULL}
    scheduler.add(make_sequence("urgent", [3], 20, priority=-1))
    assert rehearsal.step().held == {"b": Reason.BEHIND_HEAD, "urgent": Reason.BATCH_FULL}


def test_a_steady_step_yields_the_same_plan() -> None:
    scheduler = make_scheduler(block_size=8)
    rehearsal = Rehearsal(scheduler)
    for name in "abc":
        scheduler.add(make_sequence(name, [ord(name)] * 9, 20))
    for _ in range(3):
        rehearsal.step()
    plan = scheduler.schedule()
    rehearsal._generate(plan)
    assert scheduler.schedule() is plan
    assert not plan.decisions and len(plan.generation) == 3
    scheduler.add(make_sequence("d", [4], 20))
    assert scheduler.schedule() is not plan


def test_equal_progress_serves_two_prompts_at_once() -> None:
    scheduler = make_scheduler(max_tokens=16, chunk=16, chunking="equal_progress")
    scheduler.add(make_sequence("a", [1] * 20, 2))
    scheduler.add(make_sequence("b", [2] * 20, 2))
    assert Rehearsal(scheduler).step().context == {"a": (0, 8), "b": (0, 8)}


def test_a_prefix_hit_saves_budget() -> None:
    """Two prompts of 20 tokens with 15 cached each fit a step of 20."""
    scheduler = make_scheduler(num_blocks=60, block_size=5, max_tokens=20, chunk=20)
    rehearsal = Rehearsal(scheduler)
    for name in "ab":
        scheduler.add(make_sequence(name, [ord(name)] * 15, 1))
        rehearsal.step()
    for name in "ab":
        scheduler.add(make_sequence(name * 2, [ord(name)] * 20, 1))
    assert rehearsal.step().context == {"aa": (15, 20), "bb": (15, 20)}


def test_one_context_and_two_generations_a_step() -> None:
    """12 tokens a step, prompts of 10: decodes are served first, then whole prompts that fit."""
    scheduler = make_scheduler(
        num_blocks=60, block_size=10, max_num_seqs=4, max_tokens=12, chunk=10
    )
    for number in range(4):
        scheduler.add(make_sequence(str(number), [number] * 10, 3))
    rehearsal = Rehearsal(scheduler)
    steps = [rehearsal.step() for _ in range(4)]
    assert [(sorted(s.context), sorted(s.generation)) for s in steps] == [
        (["0"], []),
        (["1"], ["0"]),
        (["2"], ["0", "1"]),
        (["3"], ["1", "2"]),
    ]


def test_contexts_go_on_when_generations_leave_less_than_a_unit() -> None:
    scheduler = make_scheduler(num_blocks=60, max_num_seqs=8, max_tokens=8, chunk=8)
    rehearsal = Rehearsal(scheduler)
    for number in range(6):
        assert rehearsal.begin(make_sequence(str(number), [number], 20))
    scheduler.add(make_sequence("late", [7] * 11, 2))
    steps = [rehearsal.step().context["late"] for _ in range(6)]
    assert steps == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 11)]


def test_a_budget_below_the_number_of_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        make_scheduler(max_num_seqs=40, max_tokens=32)


# -- properties ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A request of a generated workload."""

    prompt: int
    answer: int
    family: int  # requests of a family share the beginning of their prompts
    priority: int
    arrives: int
    lands: bool
    moves: bool  # if it lands
    leaves: int | None  # the client gives up in this iteration
    adapter: str | None

    def sequence(self, number: int) -> Sequence:
        shared = min(self.prompt, 11)
        tokens = [self.family] * shared + [100 + number] * (self.prompt - shared)
        return make_sequence(
            str(number),
            tokens,
            self.answer,
            source=PEER if self.lands else None,
            priority=self.priority,
            arrived=float(self.arrives),
            adapter=self.adapter,
            moves=self.moves and self.lands,
        )


shapes = st.builds(
    Shape,
    prompt=st.integers(1, 40),
    answer=st.integers(1, 24),
    family=st.integers(0, 3),
    priority=st.integers(-1, 1),
    arrives=st.integers(0, 30),
    lands=st.booleans(),
    moves=st.booleans(),
    leaves=st.none() | st.none() | st.integers(0, 40),
    adapter=st.sampled_from([None, None, "a", "b", "c"]),
)


@dataclass
class Workload:
    scheduler: Scheduler
    shapes: list[Shape]
    iterations: list[Iteration] = field(default_factory=list)
    computed: dict[str, list[int]] = field(default_factory=dict)  # positions of new tokens

    def run(self) -> None:
        scheduler = self.scheduler
        rehearsal = Rehearsal(scheduler)
        sequences = [shape.sequence(number) for number, shape in enumerate(self.shapes)]
        at = 0
        while at <= max(shape.arrives for shape in self.shapes) or not rehearsal.is_over:
            for shape, sequence in zip(self.shapes, sequences, strict=True):
                if shape.arrives == at:
                    assert scheduler.cache.can_ever_fit(sequence)
                    scheduler.add(sequence)
                elif shape.leaves == at and at > shape.arrives and sequence.phase != Phase.ENDED:
                    scheduler.remove(sequence)
                    scheduler.cache.free(sequence)
                    sequence.phase = Phase.ENDED
            if not rehearsal.is_over:
                self._step(rehearsal)
            at += 1
            assert at < 4000, "somebody starves"
        for shape, sequence in zip(self.shapes, sequences, strict=True):
            if shape.leaves is None:
                assert sequence.num_produced == sequence.request.stop.max_tokens

    def _step(self, rehearsal: Rehearsal) -> None:
        scheduler, budget = self.scheduler, self.scheduler.budget
        iteration = rehearsal.step()
        self.iterations.append(iteration)
        assert iteration.ran, "somebody waits and nobody runs"
        assert iteration.num_tokens <= budget.max_num_batched_tokens
        assert len(iteration.ran) <= scheduler.max_num_seqs
        for start, end in iteration.context.values():
            assert start < end <= start + budget.chunk_size
        assert set(iteration.held) == {s.request.request_id for s in scheduler.waiting}
        scheduler.cache.check_integrity(scheduler.sequences())
        adapters = {s.adapter for s in scheduler.sequences()} - {None}
        assert len(adapters) <= (scheduler.settings.max_adapters or 3)


@settings(max_examples=120, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    chunking=st.sampled_from(CHUNKING),
    workload=st.lists(shapes, min_size=1, max_size=14),
    num_blocks=st.integers(17, 30),
    slots=st.integers(1, 8),
    chunk=st.sampled_from([4, 8, 16]),
    ageing=st.sampled_from([None, 3.0]),
    reuse=st.booleans(),
    adapters=st.sampled_from([None, 1, 2]),
)
def test_everybody_ends_within_every_budget(
    policy: str,
    chunking: str,
    workload: list[Shape],
    num_blocks: int,
    slots: int,
    chunk: int,
    ageing: float | None,
    reuse: bool,
    adapters: int | None,
) -> None:
    scheduler = make_scheduler(
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=slots,
        max_tokens=16,
        chunk=chunk,
        policy=policy,
        chunking=chunking,
        ageing=ageing,
        reuse=reuse,
        max_adapters=adapters,
    )
    done = Workload(scheduler, workload)
    done.run()
    pauses = sum(len(iteration.paused) for iteration in done.iterations)
    event(f"{policy}: {'pauses' if pauses else 'no pauses'}")
    if policy != "max_utilization":
        assert not pauses
    counts = scheduler.cache.pool.counts()
    assert counts[BlockState.OWNED] == counts[BlockState.LANDING] == 0
    assert scheduler.cache.promised_blocks == 0 and not scheduler.held
    assert len(scheduler.generation) == 0


@settings(max_examples=60, deadline=None)
@given(workload=st.lists(shapes, min_size=2, max_size=10), slots=st.integers(1, 4))
def test_admission_keeps_the_order_of_the_queue(workload: list[Shape], slots: int) -> None:
    """With a guarantee and without delays for reuse nobody is ever overtaken in the queue,
    but by those who move here."""
    scheduler = make_scheduler(num_blocks=20, max_num_seqs=slots, max_tokens=32, reuse=False)
    sequences = [shape.sequence(number) for number, shape in enumerate(workload)]
    for sequence in sequences:
        scheduler.add(sequence)
    admitted: list[str] = []
    rehearsal = Rehearsal(scheduler)
    while not rehearsal.is_over:
        admitted += [name for name, reason in rehearsal.step().news if reason == "admitted"]
    ranked = sorted(
        sequences, key=lambda s: (not s.moves, s.request.priority, s.arrived, sequences.index(s))
    )
    assert admitted == [sequence.request.request_id for sequence in ranked]
