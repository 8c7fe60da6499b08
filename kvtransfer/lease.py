"""Which blocks a source keeps for whom, and until when: the lease table.

    expect -> open -> (add_blocks, renew)* -> ended by exactly one of: release, sweep, drop_holder
        `---> retract, release, drop_holder: never opened

A lease is expected from before its reader hears of it: that one may renew it as soon as it has
agreed to read, and what it says must not be taken for the renewal of a lease that was lost.

Whatever ends a lease hands its blocks back, once. A lease is over from `expires_at` on whether or
not a sweep has run: it can neither be renewed nor released as held after that.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.errors import StaleKind, StaleReference
from segue.cluster.identity import AttemptId, WorkerIdentity


class ReleaseVerdict(StrEnum):
    """What the source says to a reader that has finished; only HELD makes its copy valid."""

    HELD = "held"
    EXPIRED = "expired"
    UNKNOWN = "unknown"  # never opened, or ended already
    GENERATION_CHANGED = "generation changed"
    WRONG_ATTEMPT = "wrong attempt"


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that is over; `block_ids` are to be given back by whoever receives this."""

    lease_id: str
    holder: WorkerIdentity
    attempt: AttemptId
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    verdict: ReleaseVerdict
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Expected:
    holder: WorkerIdentity
    attempt: AttemptId


@dataclass(slots=True)
class _Lease:
    holder: WorkerIdentity
    attempt: AttemptId
    pool_generation: int
    expires_at: float
    blocks: dict[int, None] = field(default_factory=dict)  # in the order added


class LeaseTable:
    """The leases of one source. `lease_seconds` is what a renewal is good for."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._expected: dict[str, _Expected] = {}
        self._leases: dict[str, _Lease] = {}
        # One entry (time, lease_id) for each open lease, never later than its true expiry, since
        # renewals only extend. Entries are corrected, or dropped, when they come up.
        self._expiries: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Of open leases."""
        return len(self._leases)

    def expect(self, lease_id: str, holder: WorkerIdentity, attempt: AttemptId) -> None:
        """`holder` is about to be asked whether it will read under this lease.

        Whoever expects a lease opens it or retracts it. Raises ValueError if it is known already.
        """
        if lease_id in self._expected or lease_id in self._leases:
            raise ValueError(f"lease {lease_id} is known already")
        self._expected[lease_id] = _Expected(holder, attempt)

    def retract(self, lease_id: str) -> None:
        """Expect a lease no longer; one that is open stays so."""
        self._expected.pop(lease_id, None)

    def open(self, lease_id: str, pool_generation: int, expires_at: float) -> None:
        """Start an expected lease, without blocks.

        Raises StaleReference if it is not expected (any more): its holder has released it already.
        """
        expected = self._expected.pop(lease_id, None)
        if expected is None:
            raise StaleReference(f"lease {lease_id} is not expected", StaleKind.LEASE)
        lease = _Lease(expected.holder, expected.attempt, pool_generation, expires_at)
        self._leases[lease_id] = lease
        heapq.heappush(self._expiries, (expires_at, lease_id))

    def add_blocks(self, lease_id: str, block_ids: Iterable[int]) -> None:
        """Put blocks under a lease; a block may be under several leases, but once under each.

        Raises StaleReference if the lease has ended, ValueError for a block it has already.
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            raise StaleReference(f"lease {lease_id} is not open", StaleKind.LEASE)
        added = dict.fromkeys(fresh := list(block_ids))
        if len(added) != len(fresh) or not added.keys().isdisjoint(lease.blocks):
            raise ValueError(f"lease {lease_id}: a block was added twice")
        lease.blocks |= added

    def renew(
        self, lease_ids: Iterable[str], holder: WorkerIdentity, now: float
    ) -> tuple[str, ...]:
        """Extend `holder`'s leases; return those that are not (or no longer) its own.

        One that is expected is its own; its time begins when it is opened.
        """
        unknown = []
        for lease_id in lease_ids:
            expected, lease = self._expected.get(lease_id), self._leases.get(lease_id)
            if expected is not None and expected.holder == holder:
                continue
            if lease is None or lease.holder != holder or now >= lease.expires_at:
                unknown.append(lease_id)
            else:
                lease.expires_at = max(lease.expires_at, now + self._lease_seconds)
        return tuple(unknown)

    def release(
        self, lease_id: str, attempt: AttemptId, pool_generation: int, now: float
    ) -> Release:
        """End a lease because its holder has finished, or gave up, reading.

        A release for another attempt ends nothing: it was not sent by this lease's holder.
        """
        expected = self._expected.get(lease_id)
        if expected is not None and expected.attempt == attempt:
            del self._expected[lease_id]  # given back before it was opened: it will not be
        lease = self._leases.get(lease_id)
        if lease is None:
            return Release(ReleaseVerdict.UNKNOWN)
        if lease.attempt != attempt:
            return Release(ReleaseVerdict.WRONG_ATTEMPT)
        ended = self._end(lease_id)
        if now >= lease.expires_at:
            return Release(ReleaseVerdict.EXPIRED, ended.block_ids)
        if lease.pool_generation != pool_generation:
            return Release(ReleaseVerdict.GENERATION_CHANGED, ended.block_ids)
        return Release(ReleaseVerdict.HELD, ended.block_ids)

    def sweep(self, now: float) -> list[EndedLease]:
        """End all leases that have expired by `now`."""
        ended = []
        while (earliest := self.next_expiry()) is not None and earliest <= now:
            _, lease_id = heapq.heappop(self._expiries)
            ended.append(self._end(lease_id))
        return ended

    def drop_holder(self, holder: WorkerIdentity) -> list[EndedLease]:
        """End all leases of a worker that is proven gone."""
        for key in [key for key, lease in self._expected.items() if lease.holder == holder]:
            del self._expected[key]
        owned = [key for key, lease in self._leases.items() if lease.holder == holder]
        return [self._end(lease_id) for lease_id in owned]

    def next_expiry(self) -> float | None:
        """When the next sweep will find something, or None without leases."""
        while self._expiries:
            listed, lease_id = self._expiries[0]
            lease = self._leases.get(lease_id)
            if lease is None:
                heapq.heappop(self._expiries)
            elif lease.expires_at > listed:
                heapq.heapreplace(self._expiries, (lease.expires_at, lease_id))
            else:
                return lease.expires_at
        return None

    def _end(self, lease_id: str) -> EndedLease:
        lease = self._leases.pop(lease_id)
        return EndedLease(lease_id, lease.holder, lease.attempt, tuple(lease.blocks))
