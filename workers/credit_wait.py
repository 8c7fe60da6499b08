"""A prompt's wait for a credit: at its decode worker and, if it is told of room, at another one.

Nobody has moved a byte yet, so only the binding changes. The place in the first worker's queue is
kept until another has granted; whoever grants first has it, and what the others may hold is told
by `losers`. Each worker is asked once at most.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from segue.cluster.errors import SegueError
from segue.cluster.handoff import RebindOutcome, RebindReport, ReserveOutcome
from segue.cluster.identity import Peer

MAX_ASKED = 8

Reserve = Callable[[Peer, str, float], Awaitable[ReserveOutcome]]  # peer, lease id, seconds


@dataclass(slots=True, eq=False)
class Inquiry:
    """One decode worker that was asked. Each has a lease of its own: what one does with its lease
    concerns nobody else. `may_hold`: it has not said that it reserved nothing."""

    decode: Peer
    lease_id: str = field(default_factory=lambda: secrets.token_hex(8))
    may_hold: bool = True
    num_cached_blocks: int = 0
    task: asyncio.Task[ReserveOutcome] | None = None


class CreditWait:
    def __init__(self, decode: Peer, wait_s: float, reserve: Reserve) -> None:
        """Begins to wait at `decode`. What `reserve` raises leaves open whether anything was
        reserved; an outcome with a failure does not."""
        self._reserve = reserve
        self._won: asyncio.Future[Inquiry] = asyncio.get_running_loop().create_future()
        self._asked: list[Inquiry] = []
        self._first_failure: SegueError | None = None
        self._winner: Inquiry | None = None
        self._ask(decode, wait_s)

    @property
    def losers(self) -> list[Inquiry]:
        """Those who may hold something for a prompt that does not come (any more)."""
        return [asked for asked in self._asked if asked.may_hold and asked is not self._winner]

    @property
    def refused(self) -> list[str]:
        """The leases of those who hold nothing."""
        return [asked.lease_id for asked in self._asked if not asked.may_hold]

    async def result(self) -> Inquiry:
        """Whoever granted. If nobody does, raises what the first one had to say."""
        try:
            self._winner = await self._won
            return self._winner
        finally:
            self.close()

    def close(self) -> None:
        """Stop asking; what was granted meanwhile is among the losers."""
        if not self._won.done():
            self._won.cancel()
        for asked in self._asked:
            if asked.task is not None:
                asked.task.cancel()

    async def rebind(self, decode: Peer, wait_s: float) -> RebindReport:
        """Ask another worker too, for a while; the wait is over if it grants."""
        if self._won.done():
            return RebindReport(RebindOutcome.SETTLED, "its wait for a credit is over")
        if any(asked.decode == decode for asked in self._asked):
            return RebindReport(RebindOutcome.REFUSED, f"{decode.identity} was asked before")
        if len(self._asked) >= MAX_ASKED or self._num_open > 1:
            return RebindReport(RebindOutcome.REFUSED, "enough workers have been asked")
        inquiry = self._ask(decode, wait_s)
        assert inquiry.task is not None
        either: set[asyncio.Future[Any]] = {inquiry.task, self._won}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._won.done() and not self._won.cancelled() and self._won.exception() is None:
            moved = self._won.result() is inquiry
            if moved:
                return RebindReport(RebindOutcome.MOVED)
            return RebindReport(RebindOutcome.SETTLED, "the first worker granted meanwhile")
        if self._won.done():
            return RebindReport(RebindOutcome.SETTLED, "its wait for a credit is over")
        return RebindReport(RebindOutcome.REFUSED, f"{decode.identity} had no room")

    @property
    def _num_open(self) -> int:
        return sum(asked.task is not None and not asked.task.done() for asked in self._asked)

    def _ask(self, decode: Peer, wait_s: float) -> Inquiry:
        inquiry = Inquiry(decode)
        self._asked.append(inquiry)
        inquiry.task = asyncio.ensure_future(self._reserve(decode, inquiry.lease_id, wait_s))
        inquiry.task.add_done_callback(lambda task: self._answered(inquiry, task))
        return inquiry

    def _answered(self, inquiry: Inquiry, task: "asyncio.Future[ReserveOutcome]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            outcome = task.result()
            if outcome.failure is None:
                inquiry.num_cached_blocks = outcome.num_cached_blocks
                if not self._won.done():
                    self._won.set_result(inquiry)
                return
            error = outcome.failure.to_error()
            inquiry.may_hold = False
        self._failed(inquiry, error)

    def _failed(self, inquiry: Inquiry, error: BaseException) -> None:
        if self._won.done():
            return
        if not isinstance(error, SegueError):  # a defect: nobody else makes it good
            self._won.set_exception(error)
            return
        if inquiry is self._asked[0]:
            self._first_failure = error
        if not self._num_open and self._first_failure is not None:
            self._won.set_exception(self._first_failure)
