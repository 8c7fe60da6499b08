"""The arrays of the generating sequences against a model that keeps one list for each."""

import numpy as np
import pytest
from engine_parts import make_sequence
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segue.cluster.request import FinishReason
from segue.workers.batch import row_slice
from segue.workers.generation_batch import GenerationBatch
from segue.workers.sequence import Sequence

BLOCK = 4
STOP = 7


def ready(name: str, num_tokens: int, answer: int, stop: frozenset[int] = frozenset()) -> Sequence:
    """All its KV but the last token's is there, in blocks of its own."""
    sequence = make_sequence(name, range(100, 100 + num_tokens - 1), answer, stop=stop)
    sequence.num_computed = len(sequence.tokens)
    sequence.tokens.append(1)
    first = int(name) * 1000
    sequence.block_ids = list(range(first, first + -(-sequence.num_computed // BLOCK)))
    return sequence


class BatchMachine(RuleBasedStateMachine):
    """Joins, leaves and steps in any order; each sequence's own list is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = GenerationBatch(12, BLOCK)
        self.truth: dict[Sequence, list[int]] = {}
        self.names = 0
        self.ends: dict[Sequence, int] = {}

    @precondition(lambda self: len(self.truth) < 12)
    @rule(tokens=st.integers(2, 40), answer=st.integers(2, 15), stops=st.booleans())
    def join(self, tokens: int, answer: int, stops: bool) -> None:
        self.names += 1
        stop = frozenset({STOP, STOP + 1 + self.names % 3}) if stops else frozenset[int]()
        sequence = ready(str(self.names), tokens, answer, stop)
        self.truth[sequence] = list(sequence.tokens)
        self.batch.join(sequence)

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._left(data.draw(st.sampled_from(list(self.truth))))

    def _left(self, sequence: Sequence) -> None:
        self.batch.leave(sequence)
        assert sequence.tokens == self.truth.pop(sequence)
        assert sequence.num_computed == len(sequence.tokens) - 1
        assert sequence.row is None

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        due = {s for s, tokens in self.truth.items() if (len(tokens) - 1) % BLOCK == 0}
        begins = self.batch.beginning()
        assert set(begins) <= due and len(begins) == len(set(begins))
        for sequence in begins:
            assert sequence.tokens == self.truth[sequence]
            missing = len(sequence.tokens) // BLOCK + 1 - len(sequence.block_ids)
            sequence.block_ids += range(90000, 90000 + missing)
            self.batch.grow(sequence)
        for sequence, tokens in self.truth.items():
            assert (len(tokens) - 1) // BLOCK < self.batch.num_blocks[sequence.row or 0]
        drawn = data.draw(
            st.lists(st.integers(0, 12), min_size=len(self.truth), max_size=len(self.truth))
        )
        failed = data.draw(st.sets(st.sampled_from(list(self.truth)), max_size=1))
        expected: dict[Sequence, FinishReason] = {}
        for sequence, tokens in self.truth.items():
            if sequence in failed:
                continue
            assert sequence.row is not None
            tokens.append(drawn[sequence.row])
            produced = len(tokens) - sequence.request.num_prompt_tokens
            if (finish := sequence.request.stop.check(produced, tokens[-1])) is not None:
                expected[sequence] = finish
        left = self.batch.without(failed, np.array(drawn, np.int64))
        for sequence in failed:
            assert sequence.tokens == self.truth.pop(sequence)
        assert dict(self.batch.advance(left)) == expected
        for sequence in expected:
            self._left(sequence)

    @invariant()
    def rows_say_what_the_lists_say(self) -> None:
        assert set(self.batch.sequences) == set(self.truth)
        for row, sequence in enumerate(self.batch.sequences):
            tokens = self.truth[sequence]
            assert sequence.row == row
            piece = row_slice(self.batch, row)
            assert (piece.token_ids, piece.start) == ([tokens[-1]], len(tokens) - 1)
            assert piece.block_ids == sequence.block_ids


TestBatchMachine = BatchMachine.TestCase
TestBatchMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_members_are_the_same_object_while_nobody_joins_or_leaves() -> None:
    batch = GenerationBatch(4, BLOCK)
    batch.join(ready("1", 6, 9))
    batch.join(ready("2", 7, 9))
    before = batch.sequences
    batch.advance(np.array([3, 4]))
    assert batch.sequences is before
    batch.leave(before[0])
    assert batch.sequences == (before[1],)


def test_a_step_touches_only_those_that_begin_a_block() -> None:
    batch = GenerationBatch(4, BLOCK)
    early, late = ready("1", 5, 20), ready("2", 7, 20)  # at positions 4 and 6
    batch.join(early)
    batch.join(late)
    begun = []
    for _ in range(7):
        begun.append([s.request.request_id for s in batch.beginning()])
        batch.advance(np.array([1, 1]))
    assert begun == [["1"], [], ["2"], [], ["1"], [], ["2"]]


def test_a_table_grows_beyond_what_was_reserved() -> None:
    batch = GenerationBatch(2, BLOCK)
    long = ready("1", 40 * BLOCK, 9)
    batch.join(ready("2", 5, 9))
    batch.join(long)
    assert row_slice(batch, 1).block_ids == long.block_ids
    assert row_slice(batch, 0).block_ids == [2000]


def test_who_is_not_ready_may_not_join() -> None:
    batch = GenerationBatch(2, BLOCK)
    with pytest.raises(ValueError, match="not ready"):
        batch.join(make_sequence("1", range(9), 9))


def test_a_token_ends_only_those_whose_stop_token_it_is() -> None:
    batch = GenerationBatch(3, BLOCK)
    stops = [frozenset({7}), frozenset({7, 9}), frozenset[int]()]
    sequences = [ready(str(n), 5, 20, stop) for n, stop in enumerate(stops)]
    batch.join(*sequences)
    assert not batch.advance(np.array([9, 8, 7]))
    assert [*batch.advance(np.array([10_000, 9, 9]))] == sequences[1:2]
    batch.leave(sequences[1])
    assert [*batch.advance(np.array([7, 7]))] == sequences[:1]


def test_many_stop_tokens_of_many_sequences_are_forgotten_with_them() -> None:
    batch = GenerationBatch(4, BLOCK)
    for name in range(30):
        kept = ready(str(name), 5, 20, frozenset(range(name, name + 128)))
        gone = ready(str(name + 100), 5, 20, frozenset(range(name + 1, name + 129)))
        batch.join(kept, gone)
        batch.leave(gone)
        assert not batch.advance(np.array([name + 128]))
        assert [*batch.advance(np.array([name + 127]))] == [kept]
        batch.leave(kept)


def test_nothing_is_kept_of_those_that_left() -> None:
    batch = GenerationBatch(2, BLOCK)
    for name in map(str, range(50)):
        sequence = ready(name, 5, 9)
        batch.join(sequence)
        batch.beginning()
        batch.advance(np.array([1]))
        batch.leave(sequence)
        assert batch.sequences == () and sequence not in batch
    assert batch.beginning() == [] and len(batch) == 0
