"""What one engine step computes: the runner's only input, without tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

from segue.workers.generation_batch import GenerationBatch


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

    Generation slices (index >= num_context) hold exactly one token and always sample. So does
    every row of `rows`, which come behind all slices.
    """

    slices: tuple[SequenceSlice, ...]
    num_context: int
    rows: GenerationBatch | None = None

    @property
    def num_rows(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    @property
    def num_slice_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.slices)

    @property
    def num_tokens(self) -> int:
        return self.num_slice_tokens + self.num_rows

    def in_slices(self) -> "PackedBatch":
        """The same step with a slice for each row: for runners that know no rows."""
        if self.rows is None:
            return self
        pieces = tuple(row_slice(self.rows, row) for row in range(len(self.rows)))
        return PackedBatch((*self.slices, *pieces), self.num_context)


def row_slice(rows: GenerationBatch, row: int) -> SequenceSlice:
    table = rows.block_tables[row, : rows.num_blocks[row]].tolist()
    return SequenceSlice([int(rows.token_ids[row])], int(rows.positions[row]), table, True)
