"""Several requests wander between engines in every order of events; no text ever changes."""

from dataclasses import dataclass, field

import pytest
from engine_parts import PEER, VOCABULARY, FakeRunner, make_engine, make_scheduler, next_token
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.cluster.handoff import Announcement, Assignment
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason, GenerationRequest, SamplingParams, StopRule
from segue.workers.departure import Piece, export, halt, snapshot, take_back
from segue.workers.sequence import Phase, Sequence
from segue.workers.step_outcome import StepOutcome

BLOCK = 4
NUM_ENGINES = 2
Choices = list[int]


@dataclass(eq=False)
class Story:
    """One request: what must be told, what was told, and where it is."""

    request: GenerationRequest
    told: dict[int, int] = field(default_factory=dict)
    ends: list[FinishReason | None] = field(default_factory=list)
    attempt: int = 1
    at: int = 0
    sequence: Sequence | None = None
    coming: Sequence | None = None  # at the other engine
    pieces: list[Piece] = field(default_factory=list)
    halted: bool = False

    def expected(self) -> tuple[list[int], FinishReason]:
        tokens, stop = list(self.request.prompt_token_ids), self.request.stop
        while True:
            token = next_token(tokens)
            produced = len(tokens) - self.request.num_prompt_tokens
            if stop.forbids_stop(produced) and token in stop.stop_token_ids:
                token = min(set(range(VOCABULARY)) - stop.stop_token_ids)  # the next best
            tokens.append(token)
            finish = stop.check(produced + 1, token)
            if finish is not None:
                return tokens[self.request.num_prompt_tokens :], finish

    def as_sequence(self, produced: tuple[int, ...], *, lands: bool) -> Sequence:
        assignment = Assignment(self.request, self.attempt, produced, "gateway", 60.0)
        return Sequence(assignment, 1e9, source=PEER if lands else None)


class World:
    """Engines that are stepped by hand. Moving KV is copying a row of their memory."""

    def __init__(self, policy: str, num_blocks: int, stories: list[Story]) -> None:
        self.stories = {story.request.request_id: story for story in stories}
        self.runners = [FakeRunner(num_blocks, BLOCK) for _ in range(NUM_ENGINES)]
        self.engines = [
            make_engine(
                make_scheduler(num_blocks, BLOCK, policy=policy, max_num_seqs=3), r, self.hear
            )
            for r in self.runners
        ]
        for story in stories:
            story.sequence = story.as_sequence((), lands=False)
            self.engines[0].add(story.sequence)

    def hear(self, outcome: StepOutcome) -> None:
        for _, delta in outcome.deltas():
            story = self.stories[delta.attempt.request_id]
            for position, token in enumerate(delta.token_ids, delta.position):
                assert story.told.setdefault(position, token) == token
        for ended in outcome.ended:
            story = self.stories[ended.sequence.attempt.request_id]
            assert ended.failure is None
            story.ends.append(ended.finish)

    # -- a move, a step at a time ------------------------------------------------------------

    def advance(self, story: Story, choice: int) -> None:
        """Do what comes next for a request; an odd `choice` gives up where that is possible."""
        source, target = self.engines[story.at], self.engines[1 - story.at]
        assert story.sequence is not None
        if story.coming is None:
            tokens = snapshot(source, story.sequence)
            if tokens is not None:
                story.attempt += 1
                known = max(story.request.num_prompt_tokens, len(tokens) - choice % 3)
                produced = tokens[story.request.num_prompt_tokens : known]
                story.coming = story.as_sequence(produced, lands=True)
                target.add(story.coming)
        elif story.coming.phase is not Phase.LANDING:
            if choice % 4 == 3:
                self.give_up(story)
        elif choice % 7 == 6:
            self.give_up(story)
        elif not story.halted:
            self.send(story, last=choice % 3 == 0)
        else:
            self.land(story)

    def send(self, story: Story, *, last: bool) -> None:
        source, target = self.engines[story.at], self.engines[1 - story.at]
        sequence, coming = story.sequence, story.coming
        assert sequence is not None and coming is not None
        first = coming.num_published + sum(len(piece.block_ids) for piece in story.pieces)
        if last:
            piece = halt(source, sequence, first, coming.num_context)
        else:
            piece = export(source, sequence, first, 2)
        if piece is None:  # it has ended, or was paused
            self.give_up(story)
            return
        story.pieces.append(piece)
        story.halted = last
        if not target.cache.extend_landing(coming, first + len(piece.block_ids)):
            self.give_up(story)
            return
        for index, block in enumerate(piece.block_ids, first):
            self.runners[1 - story.at].slots[coming.block_ids[index]] = list(
                self.runners[story.at].slots[block]
            )

    def land(self, story: Story) -> None:
        source, target, last = self.engines[story.at], self.engines[1 - story.at], story.pieces[-1]
        assert story.sequence is not None and story.coming is not None
        attempt = AttemptId(story.request.request_id, story.attempt)
        announcement = Announcement(
            *(PEER, attempt, 1, 0, (), (), last.last_token), token_ids=last.token_ids
        )
        assert target.land(story.coming, announcement)
        source.drop(story.sequence)
        self.end_leases(story)
        story.sequence, story.at = story.coming, 1 - story.at
        story.coming, story.halted = None, False

    def give_up(self, story: Story) -> None:
        assert story.sequence is not None and story.coming is not None
        take_back(self.engines[story.at], story.sequence)
        self.engines[1 - story.at].drop(story.coming)
        self.end_leases(story)
        story.coming, story.halted = None, False

    def end_leases(self, story: Story) -> None:
        for piece in story.pieces:
            self.engines[story.at].end_lease(piece.block_ids)
        story.pieces = []

    def finish(self) -> None:
        for story in self.stories.values():
            if story.coming is not None:
                self.give_up(story)
        for _ in range(400):
            if all(story.ends for story in self.stories.values()):
                break
            for engine in self.engines:
                engine.run_once()
        for engine in self.engines:
            engine.run_once()
            assert engine.num_sequences == 0
            engine.cache.check_integrity([])
        for story in self.stories.values():
            text, finish = story.expected()
            assert [story.told[position] for position in sorted(story.told)] == text
            assert story.ends == [finish], "exactly one end"


@st.composite
def stories(draw: st.DrawFn) -> list[Story]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        prompt = tuple(draw(st.lists(st.integers(0, 96), min_size=1, max_size=13)))
        stop = StopRule(
            draw(st.integers(2, 24)),
            draw(st.integers(0, 12)),
            frozenset(draw(st.sets(st.integers(0, 96), max_size=12))),
        )
        salt = draw(st.sampled_from(["", "salt"]))
        sampling = SamplingParams(temperature=0.0)
        found.append(Story(GenerationRequest(f"r{number}", prompt, sampling, stop, salt)))
    return found


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@settings(max_examples=100, deadline=None)
@given(
    told=stories(),
    num_blocks=st.sampled_from([12, 16, 40]),
    events=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 41)), min_size=20, max_size=80),
)
def test_texts_survive_any_wandering(
    policy: str, told: list[Story], num_blocks: int, events: list[tuple[int, int]]
) -> None:
    world = World(policy, num_blocks, told)
    for who, choice in events:
        if who < NUM_ENGINES:
            world.engines[who].run_once()
        else:
            world.advance(told[who % len(told)], choice)
    world.finish()
