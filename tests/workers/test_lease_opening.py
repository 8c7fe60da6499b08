"""A lease that its reader renews before its source has heard that there is a reader."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from engine_parts import expected_tokens
from worker_pair import NodeKind, worker_pair
from worker_trio import TEXT, trio

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import FailureKind
from segue.cluster.handoff import LeaseRelease, Reservation, ReserveOutcome
from segue.cluster.identity import WorkerIdentity
from segue.router.migration import Migration
from segue.workers.service import WorkerService

QUICK = TransferConfig(transport="loopback", read_timeout_s=5.0, lease_s=0.6)
PROMPT = range(9)


class Renewals:
    """`heard`: any of its workers has answered a renewal of something."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def source(self, service: WorkerService) -> Any:
        renewals = self

        class Source:
            def __getattr__(self, name: str) -> Any:
                return getattr(service, name)

            async def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
                unknown = await service.renew(holder, lease_ids)
                renewals.heard.set()
                return unknown

        return Source()

    def reader(self, service: WorkerService) -> Any:
        """Its credits arrive only after it has renewed."""
        renewals = self

        class Reader:
            def __getattr__(self, name: str) -> Any:
                return getattr(service, name)

            async def reserve(self, reservation: Reservation) -> ReserveOutcome:
                outcome = await service.reserve(reservation)
                async with asyncio.timeout(10):
                    await renewals.heard.wait()
                return outcome

        return Reader()


async def test_a_renewal_that_overtakes_the_credit_costs_nothing() -> None:
    renewals = Renewals()
    kinds = NodeKind(calls=renewals.source), NodeKind(calls=renewals.reader)
    async with worker_pair(QUICK, prefill_kind=kinds[0], decode_kind=kinds[1]) as pair:
        answer = await pair.ask(PROMPT, 6)
        assert answer.tokens == expected_tokens(PROMPT, 6)
        assert not pair.journeys.counters.failures
        assert pair.decode.service.decode.credits.expired == 0
        assert pair.journeys.counters.rungs == {"disaggregated": 1}
        await pair.settled()


async def test_nor_does_it_end_a_move() -> None:
    renewals = Renewals()
    transfer = QUICK.model_copy(update={"migration_wait_s": 5.0, "migration_pause_s": 5.0})
    async with trio(
        transfer=transfer, source_calls=renewals.source, target_calls=renewals.reader
    ) as three:
        answer, result = await three.move(3)
        assert isinstance(result, Migration), result
        assert answer.tokens == TEXT and three.outcomes == {"moved": 1}
        await three.settled()


async def test_a_credit_that_was_given_back_before_it_was_heard_is_a_lost_peer() -> None:
    """Nobody would ever read what is computed for it."""

    class Fickle:
        def __init__(self, service: WorkerService) -> None:
            self._service = service

        def __getattr__(self, name: str) -> Any:
            return getattr(self._service, name)

        async def reserve(self, reservation: Reservation) -> ReserveOutcome:
            attempt = reservation.assignment.attempt_id
            outcome = await self._service.reserve(reservation)
            release = LeaseRelease(reservation.lease_id, attempt, 0, completed=False)
            client = self._service.parts.peers.client(reservation.source)
            assert not (await client.release(release, deadline_s=5)).held
            return outcome

    def fickle(service: WorkerService) -> Any:
        return Fickle(service)

    async with worker_pair(QUICK, decode_kind=NodeKind(calls=fickle)) as pair:
        with pytest.raises(Exception, match="gave it back"):
            await pair.ask(PROMPT, 6)
        assert pair.journeys.counters.failures == {FailureKind.PEER_LOST.value: 1}
        assert pair.prefill.service.attempts.ended == {FailureKind.PEER_LOST.value: 1}
        await pair.settled()
