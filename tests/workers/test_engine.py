"""The engine loop around a fake model: tokens, barriers, handoff events, deadlines, balance."""

import functools
import threading
import time
from collections.abc import Iterator

import pytest
from engine_parts import (
    PEER,
    FakeRunner,
    expected_tokens,
    make_engine,
    make_scheduler,
    make_sequence,
)

from segue.cluster.errors import FailureKind
from segue.cluster.handoff import Announcement
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.workers.engine import Engine
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.sequence import Sequence
from segue.workers.step_outcome import ChunkReady, Ended, StepOutcome


class Listener:
    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []
        self.changed = threading.Condition()

    def __call__(self, outcome: StepOutcome) -> None:
        with self.changed:
            self.outcomes.append(outcome)
            self.changed.notify_all()

    def tokens(self, attempt: AttemptId) -> list[int]:
        found: list[int] = []
        for outcome in self.outcomes:
            for _, delta in outcome.deltas():
                if delta.attempt == attempt:
                    found.extend(delta.token_ids)
        return found

    def ended(self) -> dict[AttemptId, Ended]:
        return {e.sequence.attempt: e for o in self.outcomes for e in o.ended}

    def chunks(self) -> list[ChunkReady]:
        return [c for o in self.outcomes for c in o.chunks]

    def granted(self) -> list[Sequence]:
        return [s for o in self.outcomes for s in o.granted]

    def wait_for(self, condition: object, timeout: float = 10.0) -> None:
        assert callable(condition)
        with self.changed:
            assert self.changed.wait_for(condition, timeout), "it did not happen in time"


class Rig:
    def __init__(self, num_blocks: int = 32) -> None:
        self.runner = FakeRunner(num_blocks, 4)
        self.heard = Listener()
        self.engine: Engine = make_engine(
            make_scheduler(num_blocks=num_blocks), self.runner, self.heard
        )
        self.engine.start()

    def add(self, *sequences: Sequence, known: int = 0) -> None:
        for sequence in sequences:
            self.engine.call(functools.partial(self.engine.add, sequence, known)).result(5)

    def add_at_once(self, *sequences: Sequence) -> None:
        """All before the same step."""

        def add() -> None:
            for sequence in sequences:
                self.engine.add(sequence)

        self.engine.call(add).result(5)

    def counts(self) -> dict[BlockState, int]:
        return self.engine.call(self.engine.cache.pool.counts).result(5)

    def assert_idle(self) -> None:
        counts = self.counts()
        assert counts[BlockState.OWNED] == counts[BlockState.LANDING] == 0
        assert counts[BlockState.LEASED] == 0
        assert self.engine.call(lambda: self.engine.cache.promised_blocks).result(5) == 0
        assert self.engine.num_sequences == 0


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.engine.stop()
    assert not rig.engine.is_alive


def test_answers_are_right_alone_and_in_company(rig: Rig) -> None:
    prompts = {f"r{i}": list(range(i, i + 3 + 5 * i)) for i in range(7)}
    sequences = {name: make_sequence(name, prompt, 11) for name, prompt in prompts.items()}
    rig.add(*sequences.values())
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 7)
    for name, sequence in sequences.items():
        assert rig.heard.tokens(sequence.attempt) == expected_tokens(prompts[name], 11)
        assert rig.heard.ended()[sequence.attempt].finish is FinishReason.LENGTH
    rig.assert_idle()


def test_generations_follow_contexts_in_each_batch(rig: Rig) -> None:
    rig.add(*(make_sequence(f"r{i}", range(i, i + 10), 8) for i in range(5)))
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 5)
    for batch in rig.runner.batches:
        assert all(len(piece.token_ids) == 1 for piece in batch.slices[batch.num_context :])


def test_stop_token_ends_at_once_even_as_first_token(rig: Rig) -> None:
    first, second = expected_tokens([5, 6], 2)
    one = make_sequence("one", [5, 6], 9, stop=frozenset({first}))
    two = make_sequence("two", [5, 6], 9, stop=frozenset({second}))
    rig.add(one, two)
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 2)
    assert rig.heard.tokens(one.attempt) == [first]
    assert rig.heard.tokens(two.attempt) == [first, second]
    assert all(ended.finish is FinishReason.STOP for ended in rig.heard.ended().values())
    rig.assert_idle()


def test_a_request_that_raises_fails_alone(rig: Rig) -> None:
    rig.runner.poison = {96}
    good = make_sequence("good", [1, 2, 3], 20)
    bad = make_sequence("bad", [1, 96], 20)
    rig.add(good, bad)
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 2)
    failure = rig.heard.ended()[bad.attempt].failure
    assert failure is not None and failure.kind is FailureKind.COMPUTE and not failure.retryable
    assert rig.heard.tokens(good.attempt) == expected_tokens([1, 2, 3], 20)
    rig.assert_idle()


def test_if_everybody_fails_another_worker_may_succeed(rig: Rig) -> None:
    rig.runner.poison = set(range(97))
    several = [make_sequence(f"r{i}", [i, i + 1], 20) for i in range(3)]
    rig.add_at_once(*several)
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 3)
    failures = [rig.heard.ended()[sequence.attempt].failure for sequence in several]
    assert all(f is not None and f.kind is FailureKind.COMPUTE and f.retryable for f in failures)
    rig.assert_idle()


def test_an_attempt_that_is_known_is_refused_and_the_first_goes_on(rig: Rig) -> None:
    first, second = make_sequence("r", [1, 2], 90), make_sequence("r", [1, 2], 90)
    rig.add_at_once(first, second)
    rig.heard.wait_for(lambda: rig.heard.ended())
    refused = rig.heard.outcomes[0].ended[0]
    assert refused.sequence is second
    assert refused.failure is not None and refused.failure.kind is FailureKind.REFUSED
    assert not rig.engine.call(lambda: rig.engine.drop(second)).result(5)
    rig.heard.wait_for(lambda: len(rig.heard.tokens(first.attempt)) == 90)
    rig.assert_idle()


def test_logits_that_are_not_finite_fail_alone(rig: Rig) -> None:
    bad = make_sequence("bad", [4, 4, 33], 20)
    good = make_sequence("good", [1, 2, 3], 20)
    rig.runner.not_finite = {33} - set(expected_tokens([1, 2, 3], 20))
    assert rig.runner.not_finite
    rig.add(good, bad)
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 2)
    failure = rig.heard.ended()[bad.attempt].failure
    assert failure is not None and "finite" in failure.message
    assert rig.heard.tokens(good.attempt) == expected_tokens([1, 2, 3], 20)


def test_what_can_never_fit_is_refused_with_the_numbers(rig: Rig) -> None:
    rig.add(make_sequence("huge", [1] * 100, 40))
    rig.heard.wait_for(lambda: rig.heard.ended())
    (ended,) = rig.heard.ended().values()
    assert ended.failure is not None and ended.failure.kind is FailureKind.REFUSED
    assert "140 tokens need 35 KV blocks" in ended.failure.message and "32" in ended.failure.message


def test_drop_frees_and_says_nothing(rig: Rig) -> None:
    sequence = make_sequence("gone", range(9), 100)
    rig.add(sequence)
    rig.heard.wait_for(lambda: rig.heard.tokens(sequence.attempt))
    assert rig.engine.call(lambda: rig.engine.drop(sequence)).result(5)
    assert not rig.engine.call(lambda: rig.engine.drop(sequence)).result(5)
    assert not rig.heard.ended()
    rig.assert_idle()


def test_a_deadline_ends_a_sequence_and_names_its_phase(rig: Rig) -> None:
    # It lands for ever: holds blocks, runs nothing.
    blocker = make_sequence("blocker", range(9), 119, source=PEER)
    waiting = make_sequence("waiting", range(50, 59), 119, deadline=time.monotonic() + 0.2)
    rig.add(blocker, waiting)
    rig.heard.wait_for(lambda: rig.heard.ended())
    failure = rig.heard.ended()[waiting.attempt].failure
    assert failure is not None and failure.kind is FailureKind.DEADLINE
    assert "queued" in failure.message


def test_handoff_leases_each_chunk_and_frees_after_the_lease(rig: Rig) -> None:
    sequence = make_sequence("p", range(22), 5, decode_peer=PEER)
    rig.add(sequence)
    rig.heard.wait_for(lambda: any(c.first_token is not None for c in rig.heard.chunks()))
    chunks = rig.heard.chunks()
    assert [(c.first_block, len(c.block_ids)) for c in chunks] == [(0, 2), (2, 2), (4, 2)]
    assert [c.first_token for c in chunks] == [None, None, expected_tokens(range(22), 1)[0]]
    assert all(len(c.checksums) == len(c.block_ids) for c in chunks)
    assert rig.counts()[BlockState.LEASED] == 6
    for chunk in chunks:
        rig.engine.post(functools.partial(rig.engine.end_lease, chunk.block_ids))
    rig.assert_idle()
    assert rig.counts()[BlockState.CACHED] == 6  # all stay findable, the last one as a part


def test_handoff_skips_what_the_target_holds(rig: Rig) -> None:
    rig.add(make_sequence("p", range(22), 5, decode_peer=PEER), known=3)
    rig.heard.wait_for(lambda: any(c.first_token is not None for c in rig.heard.chunks()))
    told = [
        b
        for c in rig.heard.chunks()
        for b in range(c.first_block, c.first_block + len(c.block_ids))
    ]
    assert told == [3, 4, 5]


def test_landing_continues_behind_the_first_token(rig: Rig) -> None:
    prompt = list(range(10))
    first = expected_tokens(prompt, 1)[0]
    sequence = make_sequence("d", prompt, 6, source=PEER)
    rig.add(sequence)
    rig.heard.wait_for(lambda: rig.heard.granted() == [sequence])
    assert rig.counts()[BlockState.LANDING] == 3
    for position, token in enumerate(prompt):  # what a read would bring
        rig.runner.slots[sequence.block_ids[position // 4]][position % 4] = token
    last = Announcement(PEER, sequence.attempt, 1, 0, (), (), first, 0)
    assert rig.engine.call(lambda: rig.engine.land(sequence, last)).result(5)
    rig.heard.wait_for(lambda: rig.heard.ended())
    assert rig.heard.tokens(sequence.attempt) == expected_tokens(prompt, 6)
    assert not rig.engine.call(lambda: rig.engine.land(sequence, last)).result(5)
    rig.assert_idle()


def test_a_resumed_attempt_continues_the_same_text(rig: Rig) -> None:
    whole = expected_tokens(range(6), 12)
    resumed = make_sequence("r", range(6), 12, attempt=2, produced=whole[:5])
    rig.add(resumed)
    rig.heard.wait_for(lambda: rig.heard.ended())
    assert rig.heard.tokens(resumed.attempt) == whole[5:]


def test_a_second_request_with_the_same_prompt_hits_the_cache(rig: Rig) -> None:
    rig.add(make_sequence("a", range(10), 3))
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 1)
    twin = make_sequence("b", range(10), 3)
    rig.add(twin)
    rig.heard.wait_for(lambda: len(rig.heard.ended()) == 2)
    assert rig.heard.tokens(twin.attempt) == expected_tokens(range(10), 3)
    cached = [
        d.cached_tokens
        for o in rig.heard.outcomes
        for _, d in o.deltas()
        if d.attempt == twin.attempt
    ]
    assert cached[0] == 9 and not any(cached[1:])
