"""How many tokens of each admitted context run in this step, beside all generations.

Generations get their tokens first. Contexts share what is left, whole if that is possible and by
the chunking policy if not. In the packed step contexts come first nevertheless: those that go on
in the next step, then those that end in this one, each in the order of the queue.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from segue.workers.scheduler.chunking import CHUNKING, ChunkingPolicy, Remainder
from segue.workers.scheduler.plan import Decision, Reason, Scheduled
from segue.workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What a step may hold. `chunk_size` caps one context's share of a step under every policy.

    `chunk_unit` is what chunks are made of: a block by default. FORCE_CHUNK gives each context
    exactly one unit a step, so there the unit is chunk_size unless something else is asked for.
    """

    max_num_batched_tokens: int
    chunk_size: int
    block_size: int
    chunking: ChunkingPolicy = ChunkingPolicy.FIRST_COME_FIRST_SERVED
    chunk_unit: int | None = None

    def __post_init__(self) -> None:
        if not self.block_size <= self.chunk_size <= self.max_num_batched_tokens:
            raise ValueError(
                "block_size <= chunk_size <= max_num_batched_tokens must hold, got "
                f"{self.block_size}, {self.chunk_size}, {self.max_num_batched_tokens}"
            )
        if self.unit > self.chunk_size:
            raise ValueError(
                f"a chunk unit of {self.unit} tokens never fits a chunk of {self.chunk_size}"
            )
        if self.unit % self.block_size:
            raise ValueError(
                f"the chunk unit ({self.unit}) must be a multiple of block_size ({self.block_size})"
            )

    @property
    def unit(self) -> int:
        if self.chunk_unit is not None:
            return self.chunk_unit
        forced = self.chunking is ChunkingPolicy.FORCE_CHUNK
        return self.chunk_size if forced else self.block_size


@dataclass(frozen=True, slots=True)
class MicroBatch:
    context: tuple[Scheduled, ...]
    decisions: tuple[Decision, ...]  # about contexts that do not run whole


def select(
    context: Iterable[Sequence], num_generation_tokens: int, budget: StepBudget
) -> MicroBatch:
    """Share what `num_generation_tokens` leave of the budget among `context`, in order."""
    waiting = [*context]
    left = budget.max_num_batched_tokens - num_generation_tokens
    if (whole := _whole(waiting, left, budget)) is not None:
        return MicroBatch(whole, ())
    remainders = [Remainder(s.num_computed, len(s.tokens), s.num_drafts) for s in waiting]
    sizes = _sizes(remainders, left, budget)
    ongoing: list[Scheduled] = []
    ending: list[Scheduled] = []
    decisions: list[Decision] = []
    for sequence, remainder, size in zip(waiting, remainders, sizes, strict=True):
        if size == 0:
            decisions.append(Decision(sequence.attempt, Reason.TOKEN_BUDGET))
            continue
        scheduled = Scheduled(sequence, remainder.start, size)
        if size < remainder.size:
            ongoing.append(scheduled)
            decisions.append(Decision(sequence.attempt, Reason.CHUNKED, remainder.size, size))
        else:
            ending.append(scheduled)
    return MicroBatch((*ongoing, *ending), tuple(decisions))


def _whole(waiting: list[Sequence], left: int, budget: StepBudget) -> tuple[Scheduled, ...] | None:
    """All that remains of every context, if that fits, drafts included."""
    if budget.chunking is ChunkingPolicy.FORCE_CHUNK:
        return None
    chunks: list[Scheduled] = []
    limit = budget.chunk_size
    for sequence in waiting:
        start = sequence.num_computed
        size = len(sequence.tokens) - start
        left -= size + sequence.num_drafts
        if left < 0 or size > limit:
            return None
        chunks.append(Scheduled(sequence, start, size))
    return tuple(chunks)


def _sizes(remainders: list[Remainder], left: int, budget: StepBudget) -> list[int]:
    sizes = CHUNKING[budget.chunking](remainders, budget.unit, left, budget.chunk_size)
    if left > 0 and not any(sizes):
        # Generations leave less than a unit. Off the boundary is better than never: sequences that
        # land could keep it so for ever.
        sizes[0] = min(left, remainders[0].size)
    return sizes
