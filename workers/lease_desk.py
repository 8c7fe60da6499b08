"""Keeps the lease table of this worker's KV: opens, renews, sweeps, and tells engine and receiver.

Lives on the event loop, so that a reader's Release is answered at once, whatever the engine is
computing. Expired leases are swept by a timer that depends on nothing else.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from segue.cluster.errors import StaleKind
from segue.cluster.fences import Fences, Use
from segue.cluster.handoff import LeaseRelease, LeaseVerdict
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.kvtransfer.lease import EndedLease, LeaseTable, ReleaseVerdict
from segue.kvtransfer.receiver import Receiver
from segue.workers.engine import Engine

logger = logging.getLogger(__name__)

_STALE = {
    ReleaseVerdict.EXPIRED: StaleKind.LEASE,
    ReleaseVerdict.UNKNOWN: StaleKind.LEASE,
    ReleaseVerdict.GENERATION_CHANGED: StaleKind.GENERATION,
    ReleaseVerdict.WRONG_ATTEMPT: StaleKind.ATTEMPT,
}


class LeaseDesk:
    """`on_expired` is told of each lease that ended because nobody renewed it."""

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        lease_s: float,
        clock: Callable[[], float],
        on_expired: Callable[[EndedLease], None],
        fences: Fences | None = None,
    ) -> None:
        self._engine = engine
        self._receiver = receiver
        self._lease_s = lease_s
        self._clock = clock
        self._on_expired = on_expired
        self._fences = fences or Fences()
        self._table = LeaseTable(lease_s)
        self._timer: asyncio.TimerHandle | None = None
        self.verdicts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def generation(self) -> int:
        return self._engine.cache.pool.generation

    def expect(self, lease_id: str, holder: WorkerIdentity, attempt: AttemptId) -> None:
        """Call before `holder` is asked to read: from then on it may renew the lease."""
        self._table.expect(lease_id, holder, attempt)

    def retract(self, lease_id: str) -> None:
        """It will not be opened; harmless if it was, or is over."""
        self._table.retract(lease_id)

    def open(self, lease_id: str) -> None:
        """Its holder has agreed. Raises StaleReference if it has let go again meanwhile."""
        self._table.open(lease_id, self.generation, self._clock() + self._lease_s)
        self._changed()

    def add_blocks(self, lease_id: str, block_ids: tuple[int, ...]) -> None:
        """The engine has leased these blocks already. Raises StaleReference if it has ended."""
        with self._fences.watch(Use.ANNOUNCE):
            self._table.add_blocks(lease_id, block_ids)

    def release(self, release: LeaseRelease) -> LeaseVerdict:
        ended = self._table.release(
            release.lease_id, release.attempt, release.pool_generation, self._clock()
        )
        self._give_back(ended.block_ids)
        self._changed()
        self.verdicts[ended.verdict.value] += 1
        if ended.verdict is ReleaseVerdict.HELD:
            return LeaseVerdict(True)
        self._fences.refused(Use.RELEASE, _STALE[ended.verdict])
        return LeaseVerdict(False, f"lease {release.lease_id}: {ended.verdict}")

    def abandon(self, lease_id: str, attempt: AttemptId) -> None:
        """End a lease whose reader will not: should it read on, the fence catches it."""
        ended = self._table.release(lease_id, attempt, self.generation, self._clock())
        self._give_back(ended.block_ids)
        self._changed()

    def renew(self, holder: WorkerIdentity, lease_ids: Sequence[str]) -> list[str]:
        unknown = list(self._table.renew(lease_ids, holder, self._clock()))
        self._changed()
        for _ in unknown:
            self._fences.refused(Use.RENEW, StaleKind.LEASE)
        return unknown

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_back(self, block_ids: tuple[int, ...]) -> None:
        if block_ids:
            self._engine.post(lambda: self._free(block_ids))

    def _free(self, block_ids: tuple[int, ...]) -> None:
        """In the engine thread. Blocks that are not lent (any more) stay as they are."""
        try:
            self._engine.end_lease(block_ids)
        except ValueError:
            self._fences.refused(Use.FREE, StaleKind.LEASE)
            raise

    def _expire(self, lease: EndedLease) -> None:
        self.verdicts["lapsed"] += 1
        self._give_back(lease.block_ids)
        self._on_expired(lease)

    def _sweep(self) -> None:
        try:
            for lease in self._table.sweep(self._clock()):
                try:
                    self._expire(lease)
                except Exception:  # the others have expired all the same
                    logger.exception("the end of lease %s reached nobody", lease.lease_id)
        finally:
            self._changed()

    def _changed(self) -> None:
        self._receiver.serve(len(self._table) > 0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        expiry = self._table.next_expiry()
        if expiry is not None:
            delay = max(0.0, expiry - self._clock()) + 0.01
            self._timer = asyncio.get_running_loop().call_later(delay, self._sweep)
