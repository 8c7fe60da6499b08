"""Remembers the last steps of an engine that computed or decided something: the plan as it was,
and when it ran.

Recording keeps references only; a step is put into words when somebody asks.
"""

from collections import deque
from dataclasses import dataclass

from segue.cluster.step_trace import StepReason, StepRecord, StepWork
from segue.workers.scheduler.plan import StepPlan

MAX_STEPS = 4096


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    began: float
    ended: float
    plan: StepPlan
    free_blocks: int


class PlanRecorder:
    """Written by the engine thread, read by any: a deque's append and copy are atomic."""

    def __init__(self, num_steps: int = 512) -> None:
        if not 0 <= num_steps <= MAX_STEPS:
            raise ValueError(f"num_steps must be in [0, {MAX_STEPS}], got {num_steps}")
        self._steps: deque[_Step] = deque(maxlen=num_steps)
        self._count = 0
        self.unfinished: tuple[float, StepPlan] | None = None  # begun then, and not recorded yet

    def begin(self, plan: StepPlan, began: float) -> None:
        self.unfinished = began, plan

    def record(self, plan: StepPlan, began: float, ended: float, free_blocks: int) -> None:
        self.unfinished = None
        self._count += 1
        self._steps.append(_Step(self._count, began, ended, plan, free_blocks))

    def last(self, num_steps: int) -> tuple[StepRecord, ...]:
        """The newest `num_steps` steps, oldest first."""
        steps = self._steps.copy()
        while len(steps) > num_steps:
            steps.popleft()
        return tuple(map(_in_words, steps))


def _in_words(step: _Step) -> StepRecord:
    plan = step.plan
    return StepRecord(
        step.number,
        step.began,
        step.ended,
        tuple(
            StepWork(str(item.sequence.attempt), item.start, item.num_tokens)
            for item in plan.context
        ),
        tuple(str(sequence.attempt) for sequence in plan.generation),
        tuple(StepReason(str(d.attempt), d.reason.value) for d in plan.decisions),
        step.free_blocks,
    )
