"""Moves that fail on their way: the request goes on where it was, or is tried again."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

import pytest
from worker_trio import NUM_TOKENS, TEXT, Trio, trio

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, SegueError, Unavailable
from segue.cluster.handoff import Announcement, LeaseRelease, LeaseVerdict
from segue.kvtransfer.loopback_transport import Faults
from segue.router.migration import Migration
from segue.workers.service import WorkerService


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
