"""Every sequence that generates, a row each, in arrays that are changed where something changes.

A step moves all rows on by one token, so a step in which nobody joins, leaves or begins a block
is a few array operations, whatever the number of rows. What happens to a row later is known when
it joins: it is written into a calendar under the number of the step.

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
Finish = tuple[Sequence, FinishReason]

FIXED_COLUMNS = 3
NO_TOKEN = -1  # equals no token; fills what an array has too much


class GenerationBatch:
    """Rows are dense: the last row moves into the place of one that leaves."""

    def __init__(self, max_rows: int, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0  # the number of the next step
        self.version = 0  # changes whenever a row comes, goes or moves
        # One column a row of the batch, so that a row moves in one copy; the names are views.
        self._columns: Ids = np.zeros((FIXED_COLUMNS + block_size, max_rows), np.int64)
        self._name_columns()
        self.block_tables: Ids = np.zeros((max_rows, 16), np.int64)
        self.grown: list[int] = []  # rows whose table got longer since the last step
        self._rows: list[Sequence] = []
        self._members: tuple[Sequence, ...] | None = ()
        self._beginnings: dict[int, dict[Sequence, None]] = {}  # a block begins, by step
        self._endings: dict[int, dict[Sequence, None]] = {}  # the last token is drawn, by step
        self._ending_step: dict[Sequence, int] = {}
        self._beginning_step: dict[Sequence, int] = {}

    def _name_columns(self) -> None:
        self.token_ids, self.positions, self.num_blocks = self._columns[:FIXED_COLUMNS]
        first_stop = FIXED_COLUMNS + self.block_size
        self._recent = self._columns[FIXED_COLUMNS:first_stop]  # by step, modulo
        self._stops = self._columns[first_stop:]

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._beginning_step

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """By row. The same object as long as nobody joins or leaves."""
        if self._members is None:
            self._members = tuple(self._rows)
        return self._members

    # -- membership --------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """A sequence with all its KV but its last token's generates from the next step on."""
        if sequence.num_uncomputed != 1 or sequence.row is not None:
            raise ValueError(f"{sequence.attempt} is not ready to generate")
        row = sequence.row = len(self._rows)
        self._rows.append(sequence)
        self._members = None
        self.version += 1
        position = sequence.num_computed
        self._columns[:FIXED_COLUMNS, row] = (sequence.tokens[-1], position, 0)
        self._lengthen(row, 0, sequence.block_ids)
        self._set_stops(row, sequence.request.stop.stop_token_ids)
        self._begin_block_at(sequence, self.step + -position % self.block_size)
        left = sequence.request.stop.max_tokens - sequence.num_produced
        end = self._ending_step[sequence] = self.step + max(1, left) - 1
        self._endings.setdefault(end, {})[sequence] = None

    def leave(self, sequence: Sequence) -> None:
        """The sequence gets all that is known of it; its row goes to the last one."""
        row = sequence.row
        if row is None:
            return
        self.settle(sequence)
        _cross_out(self._beginnings, self._beginning_step.pop(sequence), sequence)
        _cross_out(self._endings, self._ending_step.pop(sequence), sequence)
        sequence.row = None
        last = self._rows.pop()
        if last is not sequence:
            self._move(last, row)
        self._members = None
        self.version += 1

    def _move(self, sequence: Sequence, row: int) -> None:
        before = sequence.row
        self._rows[row] = sequence
        sequence.row = row
        blocks = self.num_blocks[before]
        self.block_tables[row, :blocks] = self.block_tables[before, :blocks]
        self._columns[:, row] = self._columns[:, before]

    # -- blocks ------------------------------------------------------------------------------

    def beginning(self) -> list[Sequence]:
        """Those whose next token begins a block, with all their tokens. Once a step."""
        due = self._beginnings.pop(self.step, None)
        if not due:
            return []
        for sequence in due:
            self.settle(sequence)
            self._begin_block_at(sequence, self.step + self.block_size)
        return list(due)

    def _begin_block_at(self, sequence: Sequence, step: int) -> None:
        self._beginning_step[sequence] = step
        self._beginnings.setdefault(step, {})[sequence] = None

    def grow(self, sequence: Sequence) -> None:
        """The sequence was given more blocks."""
        row = sequence.row
        assert row is not None
        first = int(self.num_blocks[row])
        fresh = sequence.block_ids[first:]
        if fresh:
            self._lengthen(row, first, fresh)
            self.grown.append(row)

    def _lengthen(self, row: int, first: int, block_ids: list[int]) -> None:
        end = first + len(block_ids)
        while end > self.block_tables.shape[1]:
            self.block_tables = np.concatenate(
                (self.block_tables, np.zeros_like(self.block_tables)), axis=1
            )
        self.block_tables[row, first:end] = block_ids
        self.num_blocks[row] = end

    # -- steps -------------------------------------------------------------------------------

    def settle(self, sequence: Sequence) -> None:
        """Bring `tokens` and `num_computed` of a sequence up to date."""
        row = sequence.row
        assert row is not None
        position = int(self.positions[row])
        missing = position + 1 - len(sequence.tokens)
        sequence.num_computed = position
        if missing:
            kept = self._recent[:, row].tolist()
            first = (self.step - missing) % self.block_size
            end = first + missing
            sequence.tokens += kept[first:end] + kept[: max(0, end - self.block_size)]

    def advance(self, tokens: Ids) -> list[Finish]:
        """Every row drew a token, `tokens` by row. Returns those whose last one it was."""
        count = len(self._rows)
        self._recent[self.step % self.block_size, :count] = tokens
        self.token_ids[:count] = tokens
        self.positions[:count] += 1
        ends = self._endings.get(self.step, ())
        self.step += 1
        self.grown.clear()
        hits = self._stops[:, :count] == tokens
        if not ends and not hits.any():
            return []
        stopping = [self._rows[row] for row in np.flatnonzero(hits.any(axis=0))]
        return self._finished(dict.fromkeys((*ends, *stopping)))

    def without(self, failed: Collection[Sequence], tokens: Ids) -> Ids:
        """Take out rows that drew nothing; `tokens` follows the rows that move."""
        for sequence in failed:
            row = sequence.row
            if row is not None:
                tokens[row] = tokens[len(self._rows) - 1]
                self.leave(sequence)
        return tokens[: len(self._rows)]

    def _finished(self, candidates: Collection[Sequence]) -> list[Finish]:
        """The stop rule has the last word: min_tokens, for one, forbids an early stop."""
        finished: list[Finish] = []
        for sequence in candidates:
            row = sequence.row
            assert row is not None
            num_produced = int(self.positions[row]) + 1 - sequence.request.num_prompt_tokens
            finish = sequence.request.stop.check(num_produced, int(self.token_ids[row]))
            if finish is not None:
                finished.append((sequence, finish))
        return finished

    def _set_stops(self, row: int, stop_token_ids: frozenset[int]) -> None:
        missing = len(stop_token_ids) - len(self._stops)
        if missing > 0:
            more = np.full((missing, self._stops.shape[1]), NO_TOKEN, np.int64)
            self._columns = np.concatenate((self._columns, more))
            self._name_columns()
            missing = 0
        if len(self._stops):
            self._stops[:, row] = [*stop_token_ids, *[NO_TOKEN] * -missing]


def _cross_out(calendar: dict[int, dict[Sequence, None]], step: int, sequence: Sequence) -> None:
    """Nothing is left behind for a step that is over, or for which nobody is left."""
    entry = calendar.get(step)
    if entry is not None:
        entry.pop(sequence, None)
        if not entry:
            del calendar[step]
