"""Every sequence that generates, a row each, in arrays that are changed where something changes.

A step moves all rows on by one token, so a step in which nobody joins, leaves or begins a block
is a few array operations, whatever the number of rows.

    row          token_ids[row] stands at positions[row] and is computed in the next step
    blocks       block_tables[row, :num_blocks[row]]
    new tokens   the last `block_size` steps are kept; a sequence gets its own when it begins a
                 block or leaves, so Sequence.tokens and num_computed lag by less than a block

No tensor, no clock.
"""

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from segue.cluster.request import FinishReason
from segue.workers.sequence import Sequence

Ids = npt.NDArray[np.int64]
Finish = tuple[Sequence, FinishReason]

FIXED_COLUMNS = 5
NO_TOKEN = -1  # equals no token; fills what an array has too much
FEW = 6  # so many numbers are written one by one in less time than as a list


class GenerationBatch:
    """Rows are dense: the last row moves into the place of one that leaves, unless one that joins
    takes it first."""

    def __init__(self, max_rows: int, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0  # the number of the next step
        self.version = 0  # changes whenever a row comes, goes or moves
        # One column a row of the batch, so that a row moves in one copy; the names are views.
        self._columns: Ids = np.zeros((FIXED_COLUMNS + block_size, max_rows), np.int64)
        self._name_columns()
        self._width = 16  # columns of the tables
        self.block_tables: Ids = np.zeros((max_rows, self._width), np.int64)
        self.grown: list[int] = []  # rows whose table got longer since the last step
        self._rows: list[Sequence] = []
        self._holes: list[int] = []  # rows of those that left: filled before anything is read
        self._members: tuple[Sequence, ...] | None = ()

    def _name_columns(self) -> None:
        self.token_ids, self.positions, self.num_blocks = self._columns[:3]
        self._last = self._columns[3]  # the last position that the request allows
        self._phase = self._columns[4]  # a block begins in steps of this number, modulo its size
        first_stop = FIXED_COLUMNS + self.block_size
        self._recent = self._columns[FIXED_COLUMNS:first_stop]  # by step, modulo
        self._stops = self._columns[first_stop:]

    def __len__(self) -> int:
        return len(self._rows) - len(self._holes)

    def __contains__(self, sequence: Sequence) -> bool:
        row = sequence.row
        return row is not None and self._rows[row] is sequence

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """By row. The same object as long as nobody joins or leaves."""
        if self._members is None:
            self._close_holes()
            self._members = tuple(self._rows)
        return self._members

    # -- membership --------------------------------------------------------------------------

    def join(self, *sequences: Sequence) -> None:
        """Sequences with all their KV but the last token's generate from the next step on."""
        step, size = self.step, self.block_size
        stops, holes = self._stop_columns(sequences), self._holes
        self._members = None
        self.version += 1
        for sequence in sequences:
            position, tokens = sequence.num_computed, sequence.tokens
            if position + 1 != len(tokens) or sequence.row is not None:
                raise ValueError(f"{sequence.attempt} is not ready to generate")
            if holes:
                row = holes.pop()
                self._rows[row] = sequence
            else:
                row = len(self._rows)
                self._rows.append(sequence)
            sequence.row = row
            self.token_ids[row] = tokens[-1]
            self.positions[row] = position
            self._lengthen(row, 0, sequence.block_ids)
            stop = sequence.request.stop
            self._stops[:, row] = stops[stop.stop_token_ids]
            self._last[row] = sequence.num_prompt + stop.max_tokens - 1
            self._phase[row] = (step - position) % size

    def leave(self, *sequences: Sequence) -> None:
        """Sequences get all that is known of them; the last rows move into their places. Those
        that are not here are left alone."""
        leaving = [sequence for sequence in sequences if sequence.row is not None]
        if not leaving:
            return
        self.settle(*leaving)
        for sequence in leaving:
            if sequence.row is not None:
                self._holes.append(sequence.row)
            sequence.row = None
        self._members = None
        self.version += 1

    def _close_holes(self) -> None:
        if not self._holes:
            return
        rows, keep = self._rows, len(self)
        holes = [row for row in self._holes if row < keep]
        moved = sorted(set(range(keep, len(rows))).difference(self._holes))
        for hole, row in zip(holes, moved, strict=True):
            rows[hole] = rows[row]
            rows[hole].row = hole
        if moved:
            self.block_tables[holes] = self.block_tables[moved]
            self._columns[:, holes] = self._columns[:, moved]
        del rows[keep:]
        self._holes.clear()

    # -- blocks ------------------------------------------------------------------------------

    def beginning(self) -> list[Sequence]:
        """Those whose next token begins a block, with all their tokens. Once a step."""
        self._close_holes()
        due = self._phase[: len(self._rows)] == self.step % self.block_size
        if not np.count_nonzero(due):
            return []
        begun = [self._rows[row] for row in np.flatnonzero(due).tolist()]
        self.settle(*begun)
        return begun

    def grow(self, *sequences: Sequence) -> None:
        """Sequences were given more blocks."""
        self._close_holes()
        for sequence in sequences:
            row = sequence.row
            assert row is not None
            first = self.num_blocks.item(row)
            if len(sequence.block_ids) > first:
                self._lengthen(row, first, sequence.block_ids[first:])
                self.grown.append(row)

    def _lengthen(self, row: int, first: int, block_ids: list[int]) -> None:
        """The row has these blocks behind its `first` ones."""
        count = len(block_ids)
        end = first + count
        while end > self._width:
            self.block_tables = np.concatenate(
                (self.block_tables, np.zeros_like(self.block_tables)), axis=1
            )
            self._width *= 2
        tables = self.block_tables
        if count == 1:
            tables[row, first] = block_ids[0]
        elif count < FEW:
            for column, block_id in enumerate(block_ids, first):
                tables[row, column] = block_id
        else:
            tables[row, first:end] = block_ids
        self.num_blocks[row] = end

    # -- steps -------------------------------------------------------------------------------

    def settle(self, *sequences: Sequence) -> None:
        """Bring `tokens` and `num_computed` of sequences that have a row up to date."""
        size, step = self.block_size, self.step
        position_of, recent = self.positions.item, self._recent
        for sequence in sequences:
            row = sequence.row
            assert row is not None
            position = sequence.num_computed = position_of(row)
            missing = position + 1 - len(sequence.tokens)
            if missing:
                kept = recent[:, row].tolist()
                first = (step - missing) % size
                if first + missing <= size:
                    sequence.tokens += kept[first : first + missing]
                else:
                    sequence.tokens += kept[first:] + kept[: first + missing - size]

    def advance(self, tokens: Ids) -> list[Finish]:
        """Every row drew a token, `tokens` by row. Returns those whose last one it was."""
        self._close_holes()
        count = len(self._rows)
        self._recent[self.step % self.block_size, :count] = tokens
        self.token_ids[:count] = tokens
        positions = self.positions[:count]
        positions += 1
        self.step += 1
        self.grown.clear()
        over = positions >= self._last[:count]
        hits = self._stops[:, :count] == tokens
        if np.count_nonzero(hits):
            over |= hits.any(axis=0)
        if not np.count_nonzero(over):
            return []
        return self._finished(np.flatnonzero(over).tolist())

    def without(self, failed: Collection[Sequence], tokens: Ids) -> Ids:
        """Take out rows that drew nothing; `tokens` follows the rows that move."""
        gone = [sequence for sequence in failed if sequence.row is not None]
        if gone:
            before = {sequence: row for row, sequence in enumerate(self.sequences)}
            self.leave(*gone)
            tokens = tokens[[before[sequence] for sequence in self.sequences]]
        return tokens[: len(self)]

    def _finished(self, candidates: list[int]) -> list[Finish]:
        """The stop rule has the last word: min_tokens, for one, forbids an early stop."""
        finished: list[Finish] = []
        token_of, position_of = self.token_ids.item, self.positions.item
        for row in candidates:
            sequence = self._rows[row]
            num_produced = position_of(row) + 1 - sequence.num_prompt
            finish = sequence.request.stop.check(num_produced, token_of(row))
            if finish is not None:
                finished.append((sequence, finish))
        return finished

    def _stop_columns(self, sequences: Iterable[Sequence]) -> dict[frozenset[int], Ids]:
        """What stands in `_stops` for each set of stop tokens; makes room for the largest."""
        found = {sequence.request.stop.stop_token_ids for sequence in sequences}
        missing = max(map(len, found), default=0) - len(self._stops)
        if missing > 0:
            more = np.full((missing, self._stops.shape[1]), NO_TOKEN, np.int64)
            self._columns = np.concatenate((self._columns, more))
            self._name_columns()
        height = len(self._stops)
        return {ids: np.array([*ids, *[NO_TOKEN] * (height - len(ids))], np.int64) for ids in found}
