"""How the contexts of one step share its tokens: pure arithmetic on positions.

`unit`: a chunk that is not the last of its context ends on a multiple of it (block boundaries, so
that finished blocks can be shared and sent). `capacity`: tokens left for contexts in this step.
`limit`: most tokens of one context in a step; None: no limit. What a prefix hit covers is behind
`start` already, so reused tokens take nothing of the budget, and estimates are not needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class ChunkingPolicy(StrEnum):
    FIRST_COME_FIRST_SERVED = "first_come_first_served"
    SHORTEST_FIRST = "shortest_first"
    EQUAL_PROGRESS = "equal_progress"
    FORCE_CHUNK = "force_chunk"
    NO_CHUNKING = "no_chunking"


@dataclass(frozen=True, slots=True)
class Remainder:
    """A context that is computed up to `start` and ends at `end`, with drafts behind its end."""

    start: int
    end: int
    num_drafts: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    def aligned(self, size: int, unit: int) -> int:
        """At most `size` tokens: all that remain, or as many as end on a boundary."""
        if size >= self.size:
            return self.size
        return max(0, (self.start + size) // unit * unit - self.start)


def first_come_first_served(
    contexts: Sequence[Remainder], unit: int, capacity: int, limit: int | None
) -> list[int]:
    """Each takes all it can. One that gets nothing does not stop those behind it."""
    sizes: list[int] = []
    for context in contexts:
        most = capacity if limit is None else min(capacity, limit)
        sizes.append(context.aligned(most, unit))
        capacity -= sizes[-1]
    return sizes


def shortest_first(
    contexts: Sequence[Remainder], unit: int, capacity: int, limit: int | None
) -> list[int]:
    """Half of the step in order of the queue, the rest for those with least left to compute.

    Whoever has s tokens left waits for no more than is left of those that have less, however many
    and however long the others are: about that sum / (capacity / 2) steps. The first of the queue
    gets half of every step, so nobody waits for ever and a long prompt takes at most twice as
    long as alone. Where halves would hold no unit, chunks end anywhere.
    """
    if capacity < 2 * unit:
        unit = 1
    sizes = [0] * len(contexts)
    left = capacity

    def give(index: int, most: int) -> None:
        nonlocal left
        context, held = contexts[index], sizes[index]
        size = context.aligned(held + most if limit is None else min(held + most, limit), unit)
        if size > held:
            sizes[index] = size
            left -= size - held

    kept = capacity // 2  # for those with least left
    for index in range(len(contexts)):
        if left <= kept:
            break
        give(index, max(1, left - kept))
    for index in sorted(range(len(contexts)), key=lambda index: contexts[index].size):
        if not left:
            break
        give(index, left)
    return sizes


def equal_progress(
    contexts: Sequence[Remainder], unit: int, capacity: int, limit: int | None
) -> list[int]:
    """A unit for everybody, then another one, as long as something fits."""
    sizes = [0] * len(contexts)
    left = capacity
    going = True
    while going and left > 0:
        going = False
        for index, context in enumerate(contexts):
            position = context.start + sizes[index]
            step = min(unit - position % unit, context.end - position)
            fits = step <= left and (limit is None or sizes[index] + step <= limit)
            if step > 0 and fits:
                sizes[index] += step
                left -= step
                going = True
    return sizes


def force_chunk(
    contexts: Sequence[Remainder], unit: int, capacity: int, limit: int | None
) -> list[int]:
    """One unit each, even if everything would fit."""
    if limit is not None and limit < unit:
        raise ValueError(f"a chunk of {unit} tokens is larger than the limit of {limit}")
    sizes: list[int] = []
    for context in contexts:
        size = context.aligned(unit, unit)
        sizes.append(size if size <= capacity else 0)
        capacity -= sizes[-1]
    return sizes


def no_chunking(
    contexts: Sequence[Remainder], unit: int, capacity: int, limit: int | None
) -> list[int]:
    """All that remains of each, drafts included; one that does not fit stops those behind it."""
    sizes: list[int] = []
    for context in contexts:
        tokens = context.size + context.num_drafts
        capacity -= tokens
        if capacity < 0 or (limit is not None and tokens > limit):
            break
        sizes.append(context.size)
    return sizes + [0] * (len(contexts) - len(sizes))


def drafts_kept(
    contexts: Sequence[Remainder], sizes: Sequence[int], unit: int, capacity: int, limit: int | None
) -> list[int]:
    """Drafts fill what the last chunk leaves of its unit; the rest is given up, not moved."""
    left = capacity - sum(sizes)
    kept: list[int] = []
    for context, size in zip(contexts, sizes, strict=True):
        room = 0
        if size == context.size:
            room = min(-size % unit, left)
            if limit is not None:
                room = min(room, limit - size)
        kept.append(min(context.num_drafts, max(0, room)))
        left -= kept[-1]
    return kept


Chunking = Callable[[Sequence[Remainder], int, int, int | None], list[int]]

CHUNKING: dict[ChunkingPolicy, Chunking] = {
    ChunkingPolicy.FIRST_COME_FIRST_SERVED: first_come_first_served,
    ChunkingPolicy.SHORTEST_FIRST: shortest_first,
    ChunkingPolicy.EQUAL_PROGRESS: equal_progress,
    ChunkingPolicy.FORCE_CHUNK: force_chunk,
    ChunkingPolicy.NO_CHUNKING: no_chunking,
}
