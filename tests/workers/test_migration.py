"""A running request moves from one decode worker to another, undisturbed and with every fault."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import pytest_asyncio
from engine_parts import expected_tokens
from local_fleet import Answer
from worker_pair import Node, NodeKind, Pair, worker_pair

from segue.cluster.config import TransferConfig
from segue.cluster.errors import AttemptFailed, InvalidRequest, SegueError, Unavailable
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    LeaseRelease,
    LeaseVerdict,
    Reservation,
    ReserveOutcome,
)
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.kvtransfer.loopback_transport import Faults
from segue.router.migration import Migration, Migrations
from segue.workers.service import WorkerService

PROMPT = range(9)
NUM_TOKENS = 60
TEXT = expected_tokens(PROMPT, NUM_TOKENS)


@dataclass
class Trio:
    """decode-0 is the source: of two idle ones the policy takes the first."""

    pair: Pair
    source: Node
    target: Node
    migrations: Migrations
    num_asked: int = 0

    @property
    def name(self) -> str:
        """Of the newest request; the first is r1."""
        return f"r{self.num_asked}"

    async def newest(self) -> Migration:
        return await self.migrations.migrate(self.name, "decode-1")

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.pair.journeys.counters.migrations)

    async def ask(
        self, at: int, act: Callable[[], Awaitable[object]], num_tokens: int = NUM_TOKENS
    ) -> tuple[Answer, object]:
        """Begin to `act` at token `at`; what came of it, an error included, is returned."""
        acting: list[asyncio.Future[object]] = []

        async def unhurried() -> object:
            """A busy machine must not let the answer end before it could move."""
            self.pace(0.03)
            try:
                return await act()
            finally:
                self.pace(0.002)

        def on_token(answer: Answer) -> None:
            if len(answer.tokens) >= at and not acting:
                acting.append(asyncio.ensure_future(unhurried()))

        self.num_asked += 1
        answer = await self.pair.ask(PROMPT, num_tokens, request_id=self.name, on_token=on_token)
        (result,) = await asyncio.gather(*acting, return_exceptions=True)
        return answer, result

    def pace(self, step_seconds: float) -> None:
        for node in (self.source, self.target):
            node.runner.step_seconds = step_seconds

    async def move(self, at: int, num_tokens: int = NUM_TOKENS) -> tuple[Answer, object]:
        return await self.ask(at, self.newest, num_tokens)

    async def settled(self) -> None:
        await self.pair.settled(self.pair.prefill, self.source, self.target)
        assert not self.pair.journeys.load.answers and not self.pair.journeys.load.context_tokens

    def goes_on_where_it_was(self, answer: Answer) -> None:
        assert answer.tokens == TEXT
        assert self.source.service.attempts.ended == {"length": 1}
        assert not self.pair.journeys.counters.failures


@asynccontextmanager
async def trio(
    *,
    source: type[WorkerService] = WorkerService,
    target: type[WorkerService] = WorkerService,
    transfer: TransferConfig | None = None,
    max_attempts: int = 1,
    num_blocks: int = 32,
) -> AsyncIterator[Trio]:
    transfer = transfer or TransferConfig(
        transport="loopback", read_timeout_s=0.5, migration_wait_s=1.0, migration_pause_s=1.0
    )
    async with worker_pair(
        transfer,
        decode_kind=NodeKind(source),
        max_attempts=max_attempts,
        num_blocks=num_blocks,
    ) as pair:
        other = await pair.another("decode", "decode-1", NodeKind(target))
        pair.show(pair.prefill, pair.decode, other)
        await pair.until(lambda: pair.links.usable(other.identity))
        migrations = Migrations(pair.journeys, pair.links, lambda: pair.watcher.view)
        three = Trio(pair, pair.decode, other, migrations)
        three.pace(0.002)
        yield three


@pytest_asyncio.fixture
async def three() -> AsyncIterator[Trio]:
    async with trio() as started:
        yield started


async def test_the_text_goes_on_wherever_it_was(three: Trio) -> None:
    """Orders at every offset within a block, the first and the last tokens included."""
    moved = 0
    for at in (1, 2, 3, 4, 5, 6, 7, 8, 22, NUM_TOKENS - 2, NUM_TOKENS - 1):
        answer, result = await three.move(at)
        assert answer.tokens == TEXT, at
        if isinstance(result, Migration):
            moved += 1
            assert result.report is not None and result.pause_s is not None
            assert result.report.num_tokens >= len(PROMPT) + at - 1
        else:
            assert isinstance(result, SegueError), result
        await three.settled()
    assert moved >= 6, "the first may come too early, the last too late"
    assert not three.pair.journeys.counters.failures
    assert three.source.service.attempts.ended["migrated"] == moved
    assert three.target.service.attempts.ended["length"] == moved


async def test_most_of_it_is_moved_while_it_goes_on(three: Trio) -> None:
    three.pair.fabric.set_faults(Faults(delay_seconds=0.05))
    answer, result = await three.move(20)
    assert answer.tokens == TEXT
    assert isinstance(result, Migration) and result.report is not None
    report = result.report
    assert report.num_blocks_stopped <= 2 < report.num_blocks
    assert report.num_bytes == report.num_blocks * three.source.runner.layout.block_bytes
    assert report.num_tokens > len(PROMPT) + 20 + 5, "it generated while the blocks were read"
    await three.settled()


async def test_there_and_back(three: Trio) -> None:
    async def twice() -> None:
        await three.migrations.migrate("r1", "decode-1")
        await three.migrations.migrate("r1", "decode-0")

    answer, result = await three.ask(3, twice)
    assert result is None and answer.tokens == TEXT
    assert three.outcomes == {"moved": 2}
    assert three.source.service.attempts.ended == {"migrated": 1, "length": 1}
    assert three.target.service.attempts.ended == {"migrated": 1}
    await three.settled()


async def test_several_at_once(three: Trio) -> None:
    prompts = [tuple(range(i, i + 5 + i)) for i in range(5)]

    async def one(i: int, prompt: Sequence[int]) -> list[int]:
        moving: list[asyncio.Task[Migration]] = []

        def on_token(answer: Answer) -> None:
            if len(answer.tokens) == 3 + i and not moving:
                moving.append(asyncio.create_task(three.migrations.migrate(f"r{i}", "decode-1")))

        answer = await three.pair.ask(prompt, 30, request_id=f"r{i}", on_token=on_token)
        await asyncio.gather(*moving, return_exceptions=True)
        return answer.tokens

    three.pair.show(three.pair.prefill, three.source)  # all begin there
    asking = [asyncio.create_task(one(i, prompt)) for i, prompt in enumerate(prompts)]
    await three.pair.until(lambda: len(three.pair.journeys.running) == len(prompts))
    three.pair.show(three.pair.prefill, three.source, three.target)
    for prompt, task in zip(prompts, asking, strict=True):
        assert await task == expected_tokens(prompt, 30)
    await three.settled()


# -- it cannot be moved ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_id", "worker", "message"),
    [
        ("x", "decode-1", "no request 'x' is running at this gateway, which has 1"),
        ("r1", "decode-7", "no worker is called 'decode-7'; there are: decode-0, decode-1, pref"),
        ("r1", "prefill-0", "is a prefill worker"),
        ("r1", "decode-0", "is on decode-0 already"),
    ],
)
async def test_wrong_names(three: Trio, request_id: str, worker: str, message: str) -> None:
    answer, result = await three.ask(5, lambda: three.migrations.migrate(request_id, worker))
    assert isinstance(result, InvalidRequest) and message in result.message
    three.goes_on_where_it_was(answer)
    assert not three.outcomes
    await three.settled()


async def test_what_is_not_written_yet(three: Trio) -> None:
    three.pair.prefill.runner.gate.clear()
    asking = asyncio.create_task(three.pair.ask(PROMPT, 5, request_id="r1"))
    await three.pair.until(lambda: three.pair.journeys.running)
    with pytest.raises(InvalidRequest, match="is not being written yet"):
        await three.migrations.migrate("r1", "decode-1")
    three.pair.prefill.runner.gate.set()
    assert (await asking).tokens == TEXT[:5]
    await three.settled()


async def test_two_orders_for_one_request(three: Trio) -> None:
    three.pair.fabric.set_faults(Faults(delay_seconds=0.05))

    async def twice() -> list[object]:
        orders = (three.migrations.migrate("r1", "decode-1") for _ in range(2))
        return list(await asyncio.gather(*orders, return_exceptions=True))

    answer, results = await three.ask(5, twice)
    assert isinstance(results, list) and isinstance(results[0], Migration)
    assert isinstance(results[1], InvalidRequest) and "being moved already" in results[1].message
    assert answer.tokens == TEXT
    await three.settled()


async def test_a_target_that_drains(three: Trio) -> None:
    await three.target.service.drain("a test")
    answer, result = await three.move(5)
    assert isinstance(result, AttemptFailed) and "takes no new requests" in result.message
    three.goes_on_where_it_was(answer)
    assert three.outcomes == {"failed": 1}
    await three.settled()


async def test_a_target_of_another_kind(three: Trio) -> None:
    three.target.service.parts.peers.fingerprint["dtype"] = "int9"
    answer, result = await three.move(5)
    assert isinstance(result, AttemptFailed) and "dtype" in result.message
    three.goes_on_where_it_was(answer)
    await three.settled()


async def test_no_room_is_told_with_numbers() -> None:
    transfer = TransferConfig(transport="loopback", migration_wait_s=0.1)
    async with trio(transfer=transfer, num_blocks=20) as three:
        filling = filler(three)
        three.pair.links.open_inbox(filling.attempt_id, [three.target.identity])
        await three.target.service.submit(filling, None)
        await three.pair.until(lambda: three.target.engine.scheduler.generation)
        answer, result = await three.move(5)
        assert isinstance(result, AttemptFailed), result
        assert "no room within 0.1 s: it needs 18 KV blocks, 8 of 32 are" in result.message
        three.goes_on_where_it_was(answer)
        await three.pair.settled(three.source)


# -- it fails on its way ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(fail=True), "credit here|gave it back"),
        (Faults(corrupt=True), "credit here|gave it back"),
        (Faults(delay_seconds=0.8), "credit here|gave it back|not take over"),
    ],
    ids=["failed", "corrupt", "late"],
)
async def test_reads_that_fail(three: Trio, faults: Faults, message: str) -> None:
    async def spoil() -> Migration:
        three.pair.fabric.set_faults(faults)
        return await three.migrations.migrate("r1", "decode-1")

    answer, result = await three.ask(5, spoil, num_tokens=NUM_TOKENS)
    three.pair.fabric.set_faults(Faults())
    three.goes_on_where_it_was(answer)
    assert isinstance(result, SegueError)
    await three.settled()


class DiesWhenAnnounced(WorkerService):
    """Ends as if killed, at the first (or the last) announcement."""

    at_last = False
    die: ClassVar[list[Callable[[], object]]] = []  # whoever dies is called

    async def announce(self, announcement: Announcement) -> None:
        if (announcement.first_token is not None) == self.at_last:
            self.die[0]()
            await asyncio.sleep(60)
        await super().announce(announcement)


class DiesAtTheEnd(DiesWhenAnnounced):
    at_last = True


@pytest.mark.parametrize("kind", [DiesWhenAnnounced, DiesAtTheEnd], ids=["copying", "stopped"])
async def test_the_target_dies(kind: type[DiesWhenAnnounced]) -> None:
    async with trio(target=kind) as three:
        dying: list[asyncio.Task[None]] = []
        kind.die[:] = [lambda: dying.append(asyncio.create_task(three.target.server.stop()))]
        answer, result = await three.move(10)
        assert isinstance(result, AttemptFailed), result
        three.goes_on_where_it_was(answer)
        await three.pair.settled(three.source)


class OutlivesItsSource(DiesWhenAnnounced):
    """It is the other one that dies: it reads on, and the fence finds nobody."""

    async def announce(self, announcement: Announcement) -> None:
        if (announcement.first_token is not None) == self.at_last:
            self.die[0]()
        await WorkerService.announce(self, announcement)


class OutlivesItToTheEnd(OutlivesItsSource):
    at_last = True


@pytest.mark.parametrize(
    "kind", [OutlivesItsSource, OutlivesItToTheEnd], ids=["copying", "stopped"]
)
async def test_the_source_dies(kind: type[DiesWhenAnnounced]) -> None:
    async with trio(target=kind, max_attempts=3) as three:
        dying: list[asyncio.Task[None]] = []
        kind.die[:] = [lambda: dying.append(asyncio.create_task(three.source.server.stop()))]
        answer, result = await three.move(10)
        assert answer.tokens == TEXT
        assert isinstance(result, Migration | SegueError)
        assert three.pair.journeys.counters.recovered == 1 or isinstance(result, Migration)
        await three.pair.settled(three.target)


class ForgetsLeases(WorkerService):
    """A Release finds nothing: the reader must throw away what it has."""

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        self.leases.abandon(release.lease_id, release.attempt)
        return await super().release(release)


async def test_a_release_that_is_refused() -> None:
    async with trio(source=ForgetsLeases) as three:
        answer, result = await three.move(10)
        assert isinstance(result, AttemptFailed) and "gave it back" in result.message
        three.goes_on_where_it_was(answer)
        assert three.target.service.attempts.ended == {"fenced": 1}
        await three.settled()


class DropsItsVerdicts(WorkerService):
    """The reader is told nothing; that it may go on is known here only."""

    async def release(self, release: LeaseRelease) -> LeaseVerdict:
        await super().release(release)
        raise Unavailable("cut off")


async def test_a_verdict_that_is_lost_is_recovered_by_a_new_attempt() -> None:
    """The source has let go and the target does not know: nobody has it."""
    async with trio(source=DropsItsVerdicts, max_attempts=2) as three:
        answer, result = await three.move(10)
        assert answer.tokens == TEXT
        assert isinstance(result, Migration) and result.pause_s is None
        assert three.pair.journeys.counters.failures == {"peer_lost": 1}
        assert three.outcomes == {"target lost": 1}
        await three.settled()


class NeverReleases(WorkerService):
    async def announce(self, announcement: Announcement) -> None:
        if announcement.first_token is None:
            await super().announce(announcement)


async def test_a_target_that_falls_silent_is_not_waited_for() -> None:
    transfer = TransferConfig(transport="loopback", migration_pause_s=0.2)
    async with trio(target=NeverReleases, transfer=transfer) as three:
        answer, result = await three.move(10)
        assert isinstance(result, AttemptFailed)
        assert "did not take over within 0.2 s" in result.message
        three.goes_on_where_it_was(answer)
        await three.settled()


class SlowToGrant(WorkerService):
    async def reserve(self, reservation: Reservation) -> ReserveOutcome:
        outcome = await super().reserve(reservation)
        await asyncio.sleep(0.1)
        return outcome


async def test_it_ends_before_it_could_move() -> None:
    async with trio(target=SlowToGrant) as three:
        answer, result = await three.move(8, num_tokens=12)
        assert answer.tokens == TEXT[:12]
        assert isinstance(result, SegueError), result  # what it says depends on the moment
        assert not three.pair.journeys.counters.failures
        await three.settled()


async def test_a_client_that_leaves_takes_everything_with_it(three: Trio) -> None:
    """At whatever moment of the move."""
    three.pair.fabric.set_faults(Faults(delay_seconds=0.02))
    for moment in range(0, 100, 7):
        begun = asyncio.Event()
        three.num_asked += 1
        asking = asyncio.create_task(
            three.pair.ask(PROMPT, 80, request_id=three.name, on_token=partial(_set, begun))
        )
        await begun.wait()
        await three.pair.until(lambda: three.migrations.written_by(three.source.identity))
        moving = asyncio.create_task(three.newest())
        await asyncio.sleep(moment / 1000)
        asking.cancel()
        await asyncio.gather(asking, moving, return_exceptions=True)
        await three.settled()
    three.pair.fabric.set_faults(Faults())
    answer, result = await three.move(3)
    assert isinstance(result, Migration) and answer.tokens == TEXT


async def test_whoever_gave_the_order_leaves_at_whatever_moment(three: Trio) -> None:
    """It is carried out, or not, but somebody always has the request."""
    three.pair.fabric.set_faults(Faults(delay_seconds=0.02))
    for moment in range(0, 100, 9):

        async def withdrawn(moment: int = moment) -> None:
            moving = asyncio.create_task(three.newest())
            await asyncio.sleep(moment / 1000)
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)

        answer, _ = await three.ask(3, withdrawn)
        assert answer.tokens == TEXT
        await three.settled()


def _set(event: asyncio.Event, answer: Answer) -> None:
    event.set()


def filler(three: Trio) -> Assignment:
    request = GenerationRequest(
        "filler", tuple(range(50, 60)), SamplingParams(temperature=0.0), StopRule(85)
    )
    return Assignment(request, 1, (), three.pair.links.gateway_id, 20.0)
