"""Which admitted sequences run in this step, and how many tokens of each.

Generations get their tokens first (one each); contexts share what is left of
max_num_batched_tokens, first come, first served, in chunks of at most chunk_size tokens. Every
chunk but the last of a context ends on a block boundary.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from segue.workers.scheduler.plan import Decision, Reason, Scheduled
from segue.workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepBudget:
    max_num_batched_tokens: int
    chunk_size: int
    block_size: int

    def __post_init__(self) -> None:
        if not self.block_size <= self.chunk_size <= self.max_num_batched_tokens:
            raise ValueError(
                "block_size <= chunk_size <= max_num_batched_tokens must hold, got "
                f"{self.block_size}, {self.chunk_size}, {self.max_num_batched_tokens}"
            )


def tokens_to_compute(start: int, num_context: int, limit: int, block_size: int) -> int:
    """Length of the next chunk of a context that is computed up to `start`; 0: no room.

    The one place that decides it: at least 1 token of every context is computed, because a
    prefix hit ends before its last token.
    """
    remaining = num_context - start
    assert remaining >= 1
    if remaining <= limit:
        return remaining
    return max(0, (start + limit) // block_size * block_size - start)


def select(
    generation: Iterable[Sequence], context: Iterable[Sequence], budget: StepBudget
) -> tuple[list[Scheduled], list[Scheduled], list[Decision]]:
    """Returns (context, generation, decisions about contexts that do not run whole)."""
    running = [Scheduled(s, len(s.tokens) - 1, 1) for s in generation]
    left = budget.max_num_batched_tokens - len(running)
    assert left >= 0, "max_num_seqs must not exceed max_num_batched_tokens"
    chunks: list[Scheduled] = []
    decisions: list[Decision] = []
    for sequence in context:
        start, limit = sequence.num_computed, min(left, budget.chunk_size)
        size = tokens_to_compute(start, sequence.num_context, limit, budget.block_size)
        if size == 0:
            decisions.append(Decision(sequence.attempt, Reason.TOKEN_BUDGET))
            continue
        if start + size < sequence.num_context:
            decisions.append(Decision(sequence.attempt, Reason.CHUNKED))
        chunks.append(Scheduled(sequence, start, size))
        left -= size
    return chunks, running, decisions
