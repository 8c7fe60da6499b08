"""What one engine step did and why, as data that can be shown anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepWork:
    """Tokens [start, start + num_tokens) of one attempt."""

    attempt: str
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepReason:
    """Why the scheduler did, or did not do, something with an attempt in this step."""

    attempt: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Times in seconds since the epoch. Context before generation, as they were packed.

    A step may compute nothing, and only decide.
    """

    number: int
    began: float
    ended: float
    context: tuple[StepWork, ...]
    generation: tuple[str, ...]
    reasons: tuple[StepReason, ...]
    free_blocks: int

    @property
    def computes(self) -> bool:
        return bool(self.context or self.generation)

    @property
    def num_tokens(self) -> int:
        return sum(work.num_tokens for work in self.context) + len(self.generation)
