"""The one output of a scheduling step: who runs, how much, who was admitted or held, and why."""

from dataclasses import dataclass
from enum import StrEnum

from segue.cluster.identity import AttemptId
from segue.workers.sequence import Sequence


class Reason(StrEnum):
    ADMITTED = "admitted"
    NO_BLOCKS = "no_blocks"  # the KV-cache cannot hold prompt and answer beside the others
    BATCH_FULL = "batch_full"  # max_num_seqs sequences are admitted
    BEHIND_HEAD = "behind_head"  # first come, first served: the head of the queue is held
    TOKEN_BUDGET = "token_budget"  # max_num_batched_tokens is used up in this step
    CHUNKED = "chunked"  # only a part of the context runs in this step


@dataclass(frozen=True, slots=True)
class Decision:
    attempt: AttemptId
    reason: Reason


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Tokens [start, start + num_tokens) of a sequence run in this step."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """The step reaches the end of what is known, so it yields the next token."""
        return self.end == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Context before generation. `reservations` were admitted to receive KV from a peer."""

    context: tuple[Scheduled, ...]
    generation: tuple[Scheduled, ...]
    reservations: tuple[Sequence, ...]
    decisions: tuple[Decision, ...]

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.context) + len(self.generation)

    @property
    def is_empty(self) -> bool:
        return not self.context and not self.generation
