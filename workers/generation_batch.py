"""Every sequence that generates, a row each, in arrays that are changed where something changes.

A step moves all rows on by one token, so a step in which nobody joins, leaves or begins a block
is a few array operations, whatever the number of rows.

    row          token_ids[row] stands at positions[row] and is computed in the next step
    blocks       block_tables[row, :num_blocks[row]]
    new tokens   the last `block_size` steps are kept; a sequence gets its own when it begins a
                 block or leaves, so Sequence.tokens and num_computed lag by less than a block

No tensor, no clock.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from segue.cluster.request import FinishReason
from segue.workers.sequence import Sequence

Ids = npt.NDArray[np.int64]

FIXED_COLUMNS = 4
NO_TOKEN = -1  # equals no token
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
        self.token_ids, self.positions, self.num_blocks = self._columns[:3]
        self._last = self._columns[3]  # the last position that the request allows
        self._recent = self._columns[FIXED_COLUMNS:]  # by step, modulo
        # The same memory: one number is read or written here in half the time.
        self._token_cells, self._position_cells = self.token_ids.data, self.positions.data
        self._length_cells, self._last_cells = self.num_blocks.data, self._last.data
        self._width = 16  # columns of the tables
        self.block_tables: Ids = np.zeros((max_rows, self._width), np.int64)
        self._table_cells = self.block_tables.data
        self.grown: list[int] = []  # rows whose table got longer since the last step
        self._rows: list[Sequence] = []
        self._holes: list[int] = []  # rows of those that left: filled before anything is read
        self._members: tuple[Sequence, ...] | None = ()
        # Who begins a block in the steps of each number, modulo the size of a block.
        self._due: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._stops: dict[frozenset[int], int] = {}  # rows with each set of stop tokens
        # In how many of those sets each token is; the last number is that of all tokens above.
        self._num_stops = np.zeros(1, np.int32)

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
        step, size, due = self.step, self.block_size, self._due
        stops, holes = self._stops, self._holes
        token_ids, positions, last = self._token_cells, self._position_cells, self._last_cells
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
            token_ids[row] = tokens[-1]
            positions[row] = position
            self._write_table(row, 0, sequence.block_ids)
            stop = sequence.request.stop
            num_rows = stops[stop.stop_token_ids] = stops.get(stop.stop_token_ids, 0) + 1
            if num_rows == 1:
                self._count_stops(stop.stop_token_ids, 1)
            last[row] = sequence.num_prompt + stop.max_tokens - 1
            due[(step - position) % size][sequence] = None

    def leave(self, *sequences: Sequence) -> None:
        """Sequences get all that is known of them; the last rows move into their places. Those
        that are not here are left alone."""
        leaving = [sequence for sequence in sequences if sequence.row is not None]
        if not leaving:
            return
        self.settle(*leaving)
        step, size, due, stops = self.step, self.block_size, self._due, self._stops
        for sequence in leaving:
            if sequence.row is None:
                continue
            self._holes.append(sequence.row)
            sequence.row = None
            del due[(step - sequence.num_computed) % size][sequence]
            token_ids = sequence.request.stop.stop_token_ids
            num_rows = stops[token_ids] = stops[token_ids] - 1
            if not num_rows:
                del stops[token_ids]
                self._count_stops(token_ids, -1)
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
        self._close_holes()  # from here on the step is read
        begun = [*self._due[self.step % self.block_size]]
        if begun:
            self.settle(*begun)
        return begun

    def grow(self, *sequences: Sequence) -> None:
        """Sequences were given more blocks."""
        self._close_holes()
        for sequence in sequences:
            row = sequence.row
            assert row is not None
            first = self._length_cells[row]
            if len(sequence.block_ids) > first:
                self._write_table(row, first, sequence.block_ids)
                self.grown.append(row)

    def _write_table(self, row: int, first: int, block_ids: list[int]) -> None:
        """The row has these blocks now, of which it had the `first` ones."""
        end = len(block_ids)
        while end > self._width:
            tables = self.block_tables
            self.block_tables = np.concatenate((tables, np.zeros_like(tables)), axis=1)
            self._table_cells = self.block_tables.data
            self._width *= 2
        if end - first < FEW:
            cells = self._table_cells
            for column in range(first, end):
                cells[row, column] = block_ids[column]
        else:
            self.block_tables[row, first:end] = block_ids[first:]
        self._length_cells[row] = end

    # -- steps -------------------------------------------------------------------------------

    def settle(self, *sequences: Sequence) -> None:
        """Bring `tokens` and `num_computed` of sequences that have a row up to date."""
        size, step = self.block_size, self.step
        positions, recent = self._position_cells, self._recent
        for sequence in sequences:
            row = sequence.row
            assert row is not None
            position = sequence.num_computed = positions[row]
            tokens = sequence.tokens
            missing = position + 1 - len(tokens)
            if missing:
                first = (step - missing) % size
                end = first + missing
                tokens += recent[first:end, row].tolist()
                if end > size:
                    tokens += recent[: end - size, row].tolist()

    def advance(self, tokens: Ids) -> dict[Sequence, FinishReason]:
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
        over |= self._num_stops.take(tokens, mode="clip") > 0
        return self._finished(over.nonzero()[0].tolist())

    def without(self, failed: Collection[Sequence], tokens: Ids) -> Ids:
        """Take out rows that drew nothing; `tokens` follows the rows that move."""
        gone = [sequence for sequence in failed if sequence.row is not None]
        if gone:
            before = {sequence: row for row, sequence in enumerate(self.sequences)}
            self.leave(*gone)
            tokens = tokens[[before[sequence] for sequence in self.sequences]]
        return tokens[: len(self)]

    def _finished(self, candidates: list[int]) -> dict[Sequence, FinishReason]:
        """The stop rule has the last word: min_tokens, for one, forbids an early stop."""
        finished: dict[Sequence, FinishReason] = {}
        token_ids, positions = self._token_cells, self._position_cells
        for row in candidates:
            sequence = self._rows[row]
            num_produced = positions[row] + 1 - sequence.num_prompt
            finish = sequence.request.stop.check(num_produced, token_ids[row])
            if finish is not None:
                finished[sequence] = finish
        return finished

    def _count_stops(self, token_ids: frozenset[int], change: int) -> None:
        missing = max(token_ids, default=0) + 2 - len(self._num_stops)
        if missing > 0:
            self._num_stops = np.concatenate((self._num_stops, np.zeros(missing, np.int32)))
        self._num_stops[[*token_ids]] += change
