"""Who of all that are admitted runs in a step, and how many tokens of each context.

Generations get their tokens first. Contexts share what is left, whole if that is possible and by
the chunking policy if not. In the packed step contexts come first nevertheless: those that go on
in the next step, then those that end in this one, each in the order of the queue, but those with
the same adapter side by side.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

from segue.workers.scheduler.chunking import (
    CHUNKING,
    ChunkingPolicy,
    Remainder,
    drafts_kept,
    equal_progress,
)
from segue.workers.scheduler.plan import Decision, Reason, Scheduled
from segue.workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What a step may hold. `chunk_size` caps one context's share of a step under every policy.

    `chunk_unit` is what chunks are made of: a block by default. FORCE_CHUNK gives each context
    exactly one unit a step, so there the unit is chunk_size unless something else is asked for.

    `step_width`: most tokens that a generation takes, for its beams and drafts. With 1, every
    generation runs in every step. `max_batch_size`: most sequences of a step; None: all that are
    admitted may run. Smaller than that, it makes micro-batches that take turns.
    """

    max_num_batched_tokens: int
    chunk_size: int
    block_size: int
    chunking: ChunkingPolicy = ChunkingPolicy.FIRST_COME_FIRST_SERVED
    chunk_unit: int | None = None
    step_width: int = 1
    max_batch_size: int | None = None

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
        if not 1 <= self.step_width <= self.max_num_batched_tokens:
            raise ValueError(
                f"a generation's {self.step_width} tokens never fit a step of "
                f"{self.max_num_batched_tokens}"
            )
        if self.max_batch_size is not None and self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {self.max_batch_size}")

    @property
    def unit(self) -> int:
        if self.chunk_unit is not None:
            return self.chunk_unit
        forced = self.chunking is ChunkingPolicy.FORCE_CHUNK
        return self.chunk_size if forced else self.block_size

    @property
    def holds_all(self) -> bool:
        """Whatever may be admitted: no generation ever stays out of a step."""
        return self.step_width == 1 and self.max_batch_size is None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`drafts`: how many of its drafts a context's last chunk carries, where it has any."""

    context: tuple[Scheduled, ...] = ()
    drafts: Mapping[Sequence, int] = field(default_factory=dict)
    generation: tuple[Sequence, ...] = ()
    num_generation_tokens: int = 0
    decisions: tuple[Decision, ...] = ()  # about contexts that do not run whole

    @property
    def num_tokens(self) -> int:
        chunks = sum(chunk.num_tokens for chunk in self.context)
        return self.num_generation_tokens + chunks + sum(self.drafts.values())


def select(
    contexts: Iterable[Sequence],
    generations: tuple[Sequence, ...],
    budget: StepBudget,
    in_flight: Collection[Sequence] = (),
) -> MicroBatch:
    """One step of what is admitted, in order. Who is `in_flight`, in a step whose results are
    still to come, is left out."""
    tokens = len(generations)
    if in_flight or not budget.holds_all:
        generations, tokens = _generations(generations, budget, in_flight)
        contexts = [context for context in contexts if context not in in_flight]
        if budget.max_batch_size is not None:
            contexts = contexts[: budget.max_batch_size - len(generations)]
    waiting = [*contexts]
    left = budget.max_num_batched_tokens - tokens
    if (whole := _whole(waiting, left, budget)) is not None:
        return MicroBatch(*whole, generations, tokens)
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
    chunks = (*_by_adapter(ongoing), *_by_adapter(ending))
    drafts = _drafts(waiting, remainders, sizes, left, budget)
    return MicroBatch(chunks, drafts, generations, tokens, tuple(decisions))


def _generations(
    generations: Listed[Sequence], budget: StepBudget, in_flight: Collection[Sequence]
) -> tuple[tuple[Sequence, ...], int]:
    """Until one does not fit. All have the beam width of the first; another one is passed."""
    chosen: list[Sequence] = []
    tokens = 0
    for sequence in generations:
        if len(chosen) == budget.max_batch_size:
            break
        if sequence in in_flight or (chosen and sequence.beam_width != chosen[0].beam_width):
            continue
        if tokens + sequence.step_width > budget.max_num_batched_tokens:
            break
        tokens += sequence.step_width
        chosen.append(sequence)
    return tuple(sorted(chosen, key=_adapter)), tokens


def _whole(
    waiting: list[Sequence], left: int, budget: StepBudget
) -> tuple[tuple[Scheduled, ...], dict[Sequence, int]] | None:
    """All that remains of every context, if that fits, drafts included."""
    if budget.chunking is ChunkingPolicy.FORCE_CHUNK:
        return None
    chunks: list[Scheduled] = []
    drafts: dict[Sequence, int] = {}
    limit = budget.chunk_size
    for sequence in waiting:
        start = sequence.num_computed
        size = len(sequence.tokens) - start
        left -= size
        if sequence.num_drafts:
            left -= sequence.num_drafts
            drafts[sequence] = sequence.num_drafts
        if left < 0 or size + sequence.num_drafts > limit:
            return None
        chunks.append(Scheduled(sequence, start, size))
    return _by_adapter(chunks), drafts


def _sizes(remainders: list[Remainder], left: int, budget: StepBudget) -> list[int]:
    sizes = CHUNKING[budget.chunking](remainders, budget.unit, left, budget.chunk_size)
    starved = sizes and left > 0 and not any(sizes)
    if starved and budget.chunking is not ChunkingPolicy.NO_CHUNKING:
        # Generations leave less than a unit. Off the boundary is better than never: sequences that
        # land could keep it so for ever.
        return equal_progress(remainders, 1, left, budget.chunk_size)
    return sizes


def _drafts(
    waiting: list[Sequence],
    remainders: list[Remainder],
    sizes: list[int],
    left: int,
    budget: StepBudget,
) -> dict[Sequence, int]:
    if not any(remainder.num_drafts for remainder in remainders):
        return {}
    if budget.chunking is ChunkingPolicy.NO_CHUNKING:  # the sizes were reckoned with all of them
        kept = [remainder.num_drafts for remainder in remainders]
    else:
        kept = drafts_kept(remainders, sizes, budget.unit, left, budget.chunk_size)
    return {
        sequence: count
        for sequence, size, count in zip(waiting, sizes, kept, strict=True)
        if size and count
    }


def _by_adapter(chunks: list[Scheduled]) -> tuple[Scheduled, ...]:
    """Those without an adapter first; the order of the queue within each."""
    for chunk in chunks:
        if chunk.sequence.adapter is not None:
            return tuple(sorted(chunks, key=lambda chunk: _adapter(chunk.sequence)))
    return tuple(chunks)


def _adapter(sequence: Sequence) -> str:
    return sequence.adapter or ""
