"""The two-level scheduler of one engine: capacity first, then the micro-batch.

Pure: no clock, no tensor, no I/O. The engine feeds it sequences and applies its plans.
"""

from collections import OrderedDict

from segue.cluster.identity import AttemptId
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.capacity import admit
from segue.workers.scheduler.microbatch import StepBudget, select
from segue.workers.scheduler.plan import Decision, Reason, StepPlan
from segue.workers.sequence import Phase, Sequence


class Scheduler:
    """Sequences wait, are admitted (landing, context or generation), and leave by `remove`."""

    def __init__(self, cache: KVCache, budget: StepBudget, max_num_seqs: int) -> None:
        if max_num_seqs > budget.max_num_batched_tokens:
            raise ValueError("max_num_seqs must not exceed max_num_batched_tokens")
        self.cache = cache
        self.budget = budget
        self.max_num_seqs = max_num_seqs
        self.waiting: OrderedDict[AttemptId, Sequence] = OrderedDict()
        self.landing: OrderedDict[AttemptId, Sequence] = OrderedDict()
        self.context: OrderedDict[AttemptId, Sequence] = OrderedDict()
        self.generation: OrderedDict[AttemptId, Sequence] = OrderedDict()
        self.held: dict[AttemptId, Reason] = {}  # why each waiting sequence waits

    @property
    def num_admitted(self) -> int:
        return len(self.landing) + len(self.context) + len(self.generation)

    @property
    def has_work(self) -> bool:
        """True if a step would compute something, or may admit somebody."""
        return bool(self.context or self.generation)

    def add(self, sequence: Sequence) -> None:
        sequence.phase = Phase.QUEUED
        self.waiting[sequence.attempt] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is. Its blocks are the caller's business."""
        for group in (self.waiting, self.landing, self.context, self.generation):
            group.pop(sequence.attempt, None)
        self.held.pop(sequence.attempt, None)

    def schedule(self) -> StepPlan:
        """Admit who may be admitted and decide the next step."""
        admitted, decisions = admit(
            self.waiting.values(), self.num_admitted, self.max_num_seqs, self.cache
        )
        reservations: list[Sequence] = []
        for sequence in admitted:
            del self.waiting[sequence.attempt]
            if sequence.source is not None:
                sequence.phase = Phase.LANDING
                self.landing[sequence.attempt] = sequence
                reservations.append(sequence)
            else:
                sequence.phase = Phase.CONTEXT
                self.context[sequence.attempt] = sequence
        self.held = {d.attempt: d.reason for d in decisions if d.reason is not Reason.ADMITTED}
        context, generation, chunking = select(
            self.generation.values(), self.context.values(), self.budget
        )
        every: tuple[Decision, ...] = (*decisions, *chunking)
        return StepPlan(tuple(context), tuple(generation), tuple(reservations), every)

    def start_generation(self, sequence: Sequence) -> None:
        """The context is complete, computed here or landed, and a first token is appended."""
        self.landing.pop(sequence.attempt, None)
        self.context.pop(sequence.attempt, None)
        sequence.phase = Phase.GENERATION
        self.generation[sequence.attempt] = sequence

    def sequences(self) -> list[Sequence]:
        """All that hold blocks."""
        return [*self.landing.values(), *self.context.values(), *self.generation.values()]
