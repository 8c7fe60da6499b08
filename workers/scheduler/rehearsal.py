"""Runs the scheduler without a model: what is computed is only counted, and every token is 0.

What the engine would do with a plan is done here in thought, one iteration at a time, so that a
workload can be looked at before it is served. Whatever lands does so within its iteration.

With overlap a step is begun before the results of the one before it are known, as an engine does
that hides its own work behind the device's. Nobody computes more for that, since all ends here are
foreseen, but a slot and blocks come back a step later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segue.workers.scheduler.plan import Reason, StepPlan
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Phase
from segue.workers.sequence import Sequence as TokenSequence

TOKEN = 0


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step and what came of it. Contexts in packed order, generations as in the queue."""

    number: int
    context: dict[str, tuple[int, int]]  # positions [start, end)
    generation: tuple[str, ...]
    landed: tuple[str, ...]
    paused: tuple[str, ...]
    news: tuple[tuple[str, str], ...]  # who, and why or what
    held: dict[str, Reason]
    first_tokens: tuple[str, ...]
    ended: tuple[str, ...]
    num_tokens: int
    free_blocks: int

    @property
    def ran(self) -> frozenset[str]:
        return frozenset((*self.context, *self.generation, *self.landed))


class Rehearsal:
    """`share_chunks` False: a context's blocks can be shared only when all of it is computed."""

    def __init__(
        self, scheduler: Scheduler, *, share_chunks: bool = True, overlap: bool = False
    ) -> None:
        self.scheduler = scheduler
        self._share_chunks = share_chunks
        self._overlap = overlap
        self._ending: list[TokenSequence] = []  # their last tokens are known after the next step
        self._number = 0

    @property
    def is_over(self) -> bool:
        return not self.scheduler.waiting and not self.scheduler.num_admitted

    def begin(self, sequence: TokenSequence) -> bool:
        """Put a sequence where it generates already. False: there are no blocks for it."""
        scheduler = self.scheduler
        total = scheduler.settings.policy.tokens_to_promise(sequence, scheduler.cache)
        scheduler.add(sequence)
        if not scheduler.cache.admit(sequence, total_tokens=total):
            scheduler.remove(sequence)
            return False
        sequence.num_computed = len(sequence.tokens)
        scheduler.cache.publish(sequence)
        sequence.tokens.append(TOKEN)
        scheduler.start_generation(sequence)
        return True

    def step(self) -> Iteration:
        plan = self.scheduler.schedule()
        self.scheduler.cache.take_copies()
        self.scheduler.cache.end_copies()
        self._number += 1
        first_tokens = self._compute(plan)
        ended = self._generate(plan)
        for sequence in first_tokens:
            if self._append(sequence):
                ended.append(sequence)
        if self._overlap:
            for sequence in ended:
                self.scheduler.await_last_token(sequence)
            self._ending, ended = ended, self._ending
        for sequence in ended:
            self.scheduler.remove(sequence)
            self.scheduler.cache.free(sequence)
            sequence.phase = Phase.ENDED
        return Iteration(
            self._number,
            {_name(item.sequence): (item.start, item.end) for item in plan.context},
            _names(sorted(plan.generation, key=lambda s: s.order)),
            _names(plan.reservations),
            _names(plan.paused),
            tuple((d.attempt.request_id, str(d)) for d in plan.decisions),
            {attempt.request_id: reason for attempt, reason in self.scheduler.held.items()},
            _names(first_tokens),
            _names(ended),
            plan.num_tokens,
            self.scheduler.cache.pool.num_available,
        )

    def _compute(self, plan: StepPlan) -> list[TokenSequence]:
        """Contexts go on; returns those that end, and those that land."""
        ending: list[TokenSequence] = []
        for item in plan.context:
            item.sequence.num_computed = item.end
            if item.samples:
                ending.append(item.sequence)
            if item.samples or self._share_chunks:
                self.scheduler.cache.publish(item.sequence)
        for sequence in plan.reservations:
            self.scheduler.cache.land(sequence)
            ending.append(sequence)
        return ending

    def _generate(self, plan: StepPlan) -> list[TokenSequence]:
        rows = self.scheduler.generation
        if not plan.generation:
            return []
        return [*rows.advance(np.full(len(rows), TOKEN, np.int64))]

    def _append(self, sequence: TokenSequence) -> bool:
        """The token behind a context. True: it ends the sequence."""
        sequence.tokens.append(TOKEN)
        if sequence.hands_off or sequence.request.stop.check(sequence.num_produced, TOKEN):
            return True
        self.scheduler.start_generation(sequence)
        return False


def _name(sequence: TokenSequence) -> str:
    return sequence.request.request_id


def _names(sequences: Sequence[TokenSequence]) -> tuple[str, ...]:
    return tuple(map(_name, sequences))
