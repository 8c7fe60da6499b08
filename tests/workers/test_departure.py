"""A sequence leaves one engine for another, or is taken back, at every position of its answer."""

from collections.abc import Callable, Sequence

import pytest
from engine_parts import PEER, FakeRunner, expected_tokens, make_engine, make_scheduler
from engine_parts import make_sequence as sequence_of

from segue.cluster.handoff import Announcement
from segue.cluster.identity import AttemptId
from segue.workers.departure import Piece, export, halt, snapshot, take_back
from segue.workers.engine import Engine
from segue.workers.sequence import Phase
from segue.workers.sequence import Sequence as TokenSequence
from segue.workers.step_outcome import StepOutcome

PROMPT = tuple(range(9))
MAX_TOKENS = 14
TEXT = expected_tokens(PROMPT, MAX_TOKENS)
POLICIES = ["guaranteed_no_evict", "max_utilization"]


class Rig:
    """An engine that is stepped by hand, and what it said by position."""

    def __init__(self, policy: str = "guaranteed_no_evict", num_blocks: int = 32) -> None:
        self.told: dict[int, int] = {}
        self.ended: list[str] = []
        self.runner = FakeRunner(num_blocks, 4)
        self.engine = make_engine(
            make_scheduler(num_blocks, policy=policy, max_num_seqs=2), self.runner, self._hear
        )

    def _hear(self, outcome: StepOutcome) -> None:
        for _, delta in outcome.deltas():
            for position, token in enumerate(delta.token_ids, delta.position):
                if delta.attempt.request_id == "r":
                    assert self.told.setdefault(position, token) == token
        self.ended += [end.finish.value if end.finish else "failed" for end in outcome.ended]

    def do(self, action: Callable[[], object]) -> None:
        self.engine.post(action)

    def run(self, until: Callable[[], object]) -> None:
        for _ in range(60):
            if until():
                return
            self.engine.run_once()
        raise AssertionError("it did not come to that")

    def text(self) -> list[int]:
        return [self.told[position] for position in sorted(self.told)]


def start(rig: Rig, num_told: int) -> TokenSequence:
    sequence = sequence_of("r", PROMPT, MAX_TOKENS)
    rig.do(lambda: rig.engine.add(sequence))
    rig.run(lambda: len(rig.told) == num_told)
    return sequence


def arrive(rig: Rig, source: Rig, leaving: TokenSequence, num_known: int) -> TokenSequence:
    """Reserve at `rig`, and move all blocks of `leaving` as a transfer would."""
    known = tuple(leaving.tokens[len(PROMPT) : num_known])
    coming = sequence_of("r", PROMPT, MAX_TOKENS, attempt=2, produced=known, source=PEER)
    rig.do(lambda: rig.engine.add(coming))
    rig.run(lambda: coming.phase is Phase.LANDING)
    pieces: list[Piece] = []
    first = coming.num_published
    piece = export(source.engine, leaving, first, limit=1)
    while piece is not None and piece.block_ids:
        pieces.append(piece)
        first += len(piece.block_ids)
        piece = export(source.engine, leaving, first, limit=1)
    last = halt(source.engine, leaving, first, num_known)
    assert last is not None and last.last_token is not None
    for piece in (*pieces, last):
        end = piece.first_block + len(piece.block_ids)
        assert rig.engine.cache.extend_landing(coming, end)
        for index, block in enumerate(piece.block_ids, piece.first_block):
            rig.runner.slots[coming.block_ids[index]] = list(source.runner.slots[block])
        source.engine.end_lease(piece.block_ids)
    announcement = Announcement(
        PEER, AttemptId("r", 2), 1, 0, (), (), last.last_token, token_ids=last.token_ids
    )
    assert rig.engine.land(coming, announcement)
    return coming


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_told", range(1, MAX_TOKENS))
def test_it_goes_on_elsewhere(num_told: int, policy: str) -> None:
    source, target = Rig(policy), Rig(policy)
    leaving = start(source, num_told)
    tokens = snapshot(source.engine, leaving)
    assert tokens is not None and tokens == (*PROMPT, *TEXT[: num_told - 1])
    arrive(target, source, leaving, num_known=len(tokens))
    assert source.engine.drop(leaving)
    target.run(lambda: target.ended)
    assert target.ended == ["length"] and not source.ended
    assert target.text() == TEXT[num_told - 1 :], "the last token is told again"
    assert source.text() == TEXT[:num_told]
    for rig in (source, target):
        rig.engine.cache.check_integrity([])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("num_then", "num_told"), [(1, 2), (1, 9), (3, 11), (2, 13)])
def test_what_was_told_since_the_order_is_told_again(
    num_then: int, num_told: int, policy: str
) -> None:
    source, target = Rig(policy), Rig(policy)
    leaving = start(source, num_then)
    then = snapshot(source.engine, leaving)
    assert then is not None
    source.run(lambda: len(source.told) == num_told)
    arrive(target, source, leaving, num_known=len(then))
    target.run(lambda: target.ended)
    assert target.text() == TEXT[num_then - 1 :]
    source.engine.drop(leaving)
    for rig in (source, target):
        rig.engine.cache.check_integrity([])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_told", range(1, MAX_TOKENS))
def test_it_is_taken_back(num_told: int, policy: str) -> None:
    rig = Rig(policy)
    sequence = start(rig, num_told)
    piece = halt(rig.engine, sequence, 0, len(PROMPT))
    assert piece is not None and piece.token_ids == tuple(TEXT[: num_told - 1])
    for _ in range(3):
        rig.engine.run_once()
    assert len(rig.told) == num_told, "it stands still"
    rig.engine.end_lease(piece.block_ids)
    take_back(rig.engine, sequence)
    take_back(rig.engine, sequence)  # once is enough
    rig.run(lambda: rig.ended)
    assert rig.text() == TEXT and rig.ended == ["length"]
    rig.engine.cache.check_integrity([])


def test_its_slot_is_kept_while_it_stands_still() -> None:
    rig = Rig()
    sequence = start(rig, 3)
    piece = halt(rig.engine, sequence, 0, len(PROMPT))
    assert piece is not None
    others = [sequence_of(f"o{i}", range(20 + i, 25 + i), 4) for i in range(2)]
    for other in others:
        rig.engine.add(other)
    rig.engine.run_once()
    assert [other.phase for other in others] == [Phase.GENERATION, Phase.QUEUED], "2 slots in all"
    take_back(rig.engine, sequence)
    rig.engine.end_lease(piece.block_ids)
    rig.run(lambda: len(rig.ended) == 3)
    rig.engine.cache.check_integrity([])


def nothing_leaves(engine: Engine, sequence: TokenSequence) -> bool:
    found: Sequence[object] = (
        snapshot(engine, sequence),
        export(engine, sequence, 0, 9),
        halt(engine, sequence, 0, 9),
    )
    return found == (None, None, None)


def test_only_what_generates_leaves() -> None:
    rig = Rig()
    sequence = sequence_of("r", PROMPT, 2)
    assert nothing_leaves(rig.engine, sequence), "not known"
    rig.engine.add(sequence)
    assert nothing_leaves(rig.engine, sequence), "queued"
    rig.run(lambda: rig.told)
    assert snapshot(rig.engine, sequence) == PROMPT
    rig.run(lambda: rig.ended)
    assert nothing_leaves(rig.engine, sequence), "ended"
    take_back(rig.engine, sequence)
    assert rig.engine.num_sequences == 0


def test_a_context_that_grew_beyond_what_there_is_room_for() -> None:
    rig = Rig("max_utilization", num_blocks=4)
    coming = sequence_of("r", PROMPT, MAX_TOKENS - 8, source=PEER)
    rig.engine.add(coming)
    rig.engine.run_once()
    assert len(coming.block_ids) == 3
    assert not rig.engine.cache.extend_landing(coming, 5)
    assert rig.engine.cache.extend_landing(coming, 4)
    rig.engine.drop(coming)
    rig.engine.cache.check_integrity([])
