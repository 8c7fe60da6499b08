"""The one output of a scheduling step: who runs, how much, who was admitted or held, and why.

What a step makes one of for each request is a named tuple: as immutable as a frozen dataclass, and
made in a quarter of the time.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from segue.cluster.identity import AttemptId
from segue.workers.sequence import Sequence


class Reason(StrEnum):
    """Why something was done with a sequence, or is not done yet."""

    ADMITTED = "admitted"
    RESUMED = "resumed"  # admitted again after a pause
    PAUSED = "paused"  # gave its blocks or its slot to one before it in the queue
    CHUNKED = "chunked"  # only a part of the context runs in this step
    NO_BLOCKS = "no_blocks"  # the KV-cache cannot hold it beside the others
    NO_ADAPTER_SLOT = "no_adapter_slot"  # as many other adapters are in use as there is room for
    BATCH_FULL = "batch_full"  # max_num_seqs sequences are admitted
    BATCH_CLOSED = "batch_closed"  # static batches: the present one has not ended
    BEHIND_HEAD = "behind_head"  # first come, first served: one before it is held
    TOKEN_BUDGET = "token_budget"  # max_num_batched_tokens is used up in this step
    WAITING_FOR_REUSE = "waiting_for_reuse"  # another one computes what it would share
    WAITING_FOR_CREDIT = "waiting_for_credit"  # its decode worker has no room for it yet
    REBOUND = "rebound"  # another decode worker had room sooner: it has the credit from there
    WAITING_FOR_KV = "waiting_for_kv"  # its context is on its way from a peer
    MIGRATING = "migrating"  # it has stopped, for another worker to take over
    ENDING = "ending"  # its last token is on its way; until then it keeps its slot and its blocks
    EVICTED = "evicted"  # idle cached blocks were given up for it and those admitted before it


class Decision(NamedTuple):
    """With numbers where they decided: tokens of a context for CHUNKED, else blocks or slots.

    EVICTED says how many blocks, NO_ADAPTER_SLOT speaks of adapters.
    """

    attempt: AttemptId
    reason: Reason
    needed: int | None = None
    available: int | None = None

    def __str__(self) -> str:
        if self.available is None:
            return self.reason.value
        if self.needed is None:
            return f"{self.reason.value} ({self.available})"
        return f"{self.reason.value} ({self.available} of {self.needed})"


class Scheduled(NamedTuple):
    """Tokens [start, start + num_tokens) of a context run in this step."""

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
    """Context before generation. `reservations` were admitted to receive KV from a peer.

    Every sequence in `generation` runs one token, or 1 + num_drafts; the tuple is the same object
    as long as nobody joins or leaves. `decisions` are this step's news; `held` says of each one
    that waits what it waits for, whenever that was decided.
    """

    context: tuple[Scheduled, ...] = ()
    generation: tuple[Sequence, ...] = ()
    reservations: tuple[Sequence, ...] = ()
    paused: tuple[Sequence, ...] = ()
    decisions: tuple[Decision, ...] = ()
    num_generation_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_context_tokens + self.num_generation_tokens

    @property
    def num_context_tokens(self) -> int:
        total = 0
        for item in self.context:
            total += item.num_tokens
        return total

    @property
    def is_empty(self) -> bool:
        return not self.context and not self.generation
