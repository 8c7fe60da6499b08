"""What one engine step computes: the runner's only input, without tensors."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """Tokens [start, start + len(token_ids)) of one sequence.

    `block_ids` is its block table and covers at least those positions: position p lives in
    block `block_ids[p // block_size]`, slot `p % block_size`. With `samples` the logits of the
    slice's last token are wanted.
    """

    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    samples: bool

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """All slices of a step on one token axis: context slices first, then generation slices.

    Generation slices (index >= num_context) hold exactly one token and always sample.
    """

    slices: tuple[SequenceSlice, ...]
    num_context: int

    @property
    def num_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.slices)
