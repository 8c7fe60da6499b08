"""News that do not get through cost their own sequence, at once, and nobody else anything."""

import asyncio
from typing import ClassVar

import pytest
from engine_parts import expected_tokens
from worker_pair import Node, NodeKind, Pair, worker_pair

from segue.cluster.handoff import TokenDelta
from segue.workers.audit import Audit
from segue.workers.engine import Engine
from segue.workers.news import News
from segue.workers.sequence import Sequence
from segue.workers.service import WorkerService
from segue.workers.step_outcome import ChunkReady, Ended, GeneratedTokens, StepOutcome

BAD = "bad"  # the request that there is trouble with, once
PROMPT, OTHER = range(13), range(50, 67)  # two chunks, three chunks
SOON = 5.0  # far less than the requests' deadline


class SpoiltNews(News):
    trouble: str = ""

    def _stumble(self, where: str, request_id: str) -> None:
        if request_id == BAD and where == self.trouble:
            self.trouble = ""
            raise ZeroDivisionError("a defect on the way")

    def tell(self, gateway_id: str, delta: TokenDelta) -> None:
        self._stumble("last token" if delta.finish else "token", delta.attempt.request_id)
        super().tell(gateway_id, delta)

    def grant(self, sequence: Sequence) -> None:
        self._stumble("grant", sequence.attempt.request_id)
        super().grant(sequence)

    def hand_off(self, chunk: ChunkReady) -> None:
        last = "last chunk" if chunk.first_token is not None else "chunk"
        self._stumble(last, chunk.sequence.attempt.request_id)
        super().hand_off(chunk)

    def end(self, ended: Ended) -> None:
        self._stumble("end", ended.sequence.attempt.request_id)
        super().end(ended)

    def pass_on(self, outcome: StepOutcome) -> None:
        ended = [e for e in outcome.ended if e.sequence.attempt.request_id == BAD]
        if ended and self.trouble == "all":
            self.trouble = ""  # and not a word of this step reaches anybody
            return
        super().pass_on(outcome)


class Spoilt(WorkerService):
    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        engine = self.parts.engine
        self.news: SpoiltNews = SpoiltNews(
            self.attempts, engine, self.outbox, self.prefill, self.decode
        )
        self.audit = Audit(self.attempts, engine, self._forgotten, look_s=0.05)


class StumblingEngine(Engine):
    """Fails to take on the bad one, before or after it has."""

    when: ClassVar[str] = ""

    def add(self, sequence: Sequence, num_known_blocks: int = 0) -> None:
        is_it = sequence.attempt.request_id == BAD
        if is_it and StumblingEngine.when == "before":
            StumblingEngine.when = ""
            raise ZeroDivisionError("a defect of the engine")
        super().add(sequence, num_known_blocks)
        if is_it and StumblingEngine.when == "after":
            StumblingEngine.when = ""
            raise ZeroDivisionError("a defect of the engine")


def spoil(node: Node, trouble: str) -> SpoiltNews:
    news = node.service.news
    assert isinstance(news, SpoiltNews)
    news.trouble = trouble
    return news


async def both_are_answered(pair: Pair) -> None:
    pair.decode.runner.step_seconds = 0.002
    async with asyncio.timeout(SOON):
        good, bad = await asyncio.gather(pair.ask(OTHER, 12), pair.ask(PROMPT, 6, request_id=BAD))
    assert good.tokens == expected_tokens(OTHER, 12)
    assert bad.tokens == expected_tokens(PROMPT, 6)
    await pair.settled()


@pytest.mark.parametrize(
    ("role", "trouble"),
    [
        ("prefill", "token"),
        ("prefill", "chunk"),
        ("prefill", "last chunk"),
        ("decode", "grant"),
        ("decode", "token"),
        ("decode", "last token"),
    ],
)
async def test_trouble_with_one_sequence_is_its_own(role: str, trouble: str) -> None:
    kind = NodeKind(Spoilt)
    async with worker_pair(max_attempts=2, prefill_kind=kind, decode_kind=kind) as pair:
        node = pair.prefill if role == "prefill" else pair.decode
        news = spoil(node, trouble)
        await both_are_answered(pair)
        assert news.num_lost == 1 and pair.journeys.counters.failures == {"compute": 1}
        assert node.service.status_now().counters["defects_lost_news"] == 1


async def test_an_end_that_cannot_be_told_ends_all_the_same() -> None:
    async with worker_pair(decode_kind=NodeKind(Spoilt)) as pair:
        news = spoil(pair.decode, "end")
        await both_are_answered(pair)  # the tokens were told already
        assert news.num_lost == 1 and not pair.journeys.counters.failures
        assert pair.decode.service.attempts.ended == {"length": 1, "compute": 1}


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_end_that_nobody_heard_of_is_noticed(role: str) -> None:
    """A first token that is also the last ends on the prefill worker."""
    kind = NodeKind(Spoilt)
    async with worker_pair(max_attempts=2, prefill_kind=kind, decode_kind=kind) as pair:
        news = spoil(pair.prefill if role == "prefill" else pair.decode, "all")
        length = 1 if role == "prefill" else 6
        async with asyncio.timeout(SOON):
            answer = await pair.ask(PROMPT, length, request_id=BAD)
        assert answer.tokens == expected_tokens(PROMPT, length)
        assert news.num_lost == 1 and pair.journeys.counters.failures == {"compute": 1}
        await pair.settled()


async def test_the_audit_finds_nothing_where_nothing_is_lost() -> None:
    kind = NodeKind(Spoilt)
    async with worker_pair(prefill_kind=kind, decode_kind=kind) as pair:
        pair.prefill.runner.step_seconds = pair.decode.runner.step_seconds = 0.06
        await asyncio.gather(*(pair.ask(range(start, start + 9), 3) for start in range(4)))
        assert spoil(pair.prefill, "").num_lost == spoil(pair.decode, "").num_lost == 0
        await pair.settled()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engine_that_cannot_take_a_sequence_on_says_so(role: str, when: str) -> None:
    StumblingEngine.when = when
    kind = {f"{role}_kind": NodeKind(engine=StumblingEngine)}
    async with worker_pair(max_attempts=2, **kind) as pair:  # type: ignore[arg-type]
        await both_are_answered(pair)
        assert pair.journeys.counters.failures == {"compute": 1}
        node = pair.prefill if role == "prefill" else pair.decode
        assert node.service.status_now().counters["defects_engine_command"] == 1


async def test_rows_that_do_not_fit_together_fail_those_that_generate() -> None:
    """Whose tokens were told, and whose not, nobody knows: all of them are tried again."""
    async with worker_pair(max_attempts=2) as pair:
        pair.decode.runner.step_seconds = 0.02
        rows = pair.decode.engine.scheduler.generation
        asking = asyncio.create_task(both_are_answered_slowly(pair))
        await pair.until(lambda: len(rows) == 2)
        sequences = rows.sequences
        torn = GeneratedTokens(sequences, rows.positions[:1].copy(), rows.positions[:0], {})
        pair.decode.service.on_outcome(StepOutcome(generated=torn))
        await asking
        assert pair.journeys.counters.failures == {"compute": 2}
        assert pair.decode.service.news.num_lost == 2


async def both_are_answered_slowly(pair: Pair) -> None:
    async with asyncio.timeout(SOON):
        one, two = await asyncio.gather(pair.ask(PROMPT, 20), pair.ask(OTHER, 20))
    assert one.tokens == expected_tokens(PROMPT, 20)
    assert two.tokens == expected_tokens(OTHER, 20)
    await pair.settled()
