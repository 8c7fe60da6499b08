"""The lease table against a naive model: every block of every lease comes back exactly once."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segue.cluster.errors import StaleReference
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.kvtransfer.lease import LeaseTable, Release, ReleaseVerdict

HOLDERS = [WorkerIdentity("d0", "a"), WorkerIdentity("d0", "b"), WorkerIdentity("d1", "c")]
ATTEMPTS = [AttemptId("r", 1), AttemptId("r", 2)]
LEASE_SECONDS = 10.0

lease_ids = st.sampled_from(["l0", "l1", "l2", "l3"])
holders = st.sampled_from(HOLDERS)
attempts = st.sampled_from(ATTEMPTS)
generations = st.sampled_from([1, 2])


@dataclass
class ModelLease:
    holder: WorkerIdentity
    attempt: AttemptId
    generation: int
    expires_at: float
    blocks: list[int] = field(default_factory=list)


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(LEASE_SECONDS)
        self.model: dict[str, ModelLease] = {}
        self.expected: dict[str, tuple[WorkerIdentity, AttemptId]] = {}
        self.now = 0.0

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.5, 10.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(lease_id=lease_ids, holder=holders, attempt=attempts)
    def expect(self, lease_id: str, holder: WorkerIdentity, attempt: AttemptId) -> None:
        if lease_id in self.model or lease_id in self.expected:
            with pytest.raises(ValueError, match="known already"):
                self.table.expect(lease_id, holder, attempt)
        else:
            self.table.expect(lease_id, holder, attempt)
            self.expected[lease_id] = holder, attempt

    @rule(lease_id=lease_ids)
    def retract(self, lease_id: str) -> None:
        self.table.retract(lease_id)
        self.expected.pop(lease_id, None)

    @rule(
        lease_id=lease_ids, generation=generations, seconds=st.sampled_from([0.0, 3.0, 10.0, 30.0])
    )
    def open(self, lease_id: str, generation: int, seconds: float) -> None:
        expires_at = self.now + seconds
        if lease_id not in self.expected:
            with pytest.raises(StaleReference, match="not expected"):
                self.table.open(lease_id, generation, expires_at)
        else:
            self.table.open(lease_id, generation, expires_at)
            holder, attempt = self.expected.pop(lease_id)
            self.model[lease_id] = ModelLease(holder, attempt, generation, expires_at)

    @rule(lease_id=lease_ids, blocks=st.lists(st.integers(0, 5), max_size=3))
    def add_blocks(self, lease_id: str, blocks: list[int]) -> None:
        lease = self.model.get(lease_id)
        if lease is None:
            with pytest.raises(StaleReference):
                self.table.add_blocks(lease_id, blocks)
        elif len(set(lease.blocks + blocks)) < len(lease.blocks + blocks):
            with pytest.raises(ValueError, match="twice"):
                self.table.add_blocks(lease_id, blocks)
        else:
            self.table.add_blocks(lease_id, blocks)
            lease.blocks += blocks

    @rule(names=st.lists(lease_ids, max_size=4), holder=holders)
    def renew(self, names: list[str], holder: WorkerIdentity) -> None:
        unknown = []
        for name in names:
            lease = self.model.get(name)
            if name in self.expected:
                if self.expected[name][0] != holder:
                    unknown.append(name)
            elif lease is not None and lease.holder == holder and self.now < lease.expires_at:
                lease.expires_at = max(lease.expires_at, self.now + LEASE_SECONDS)
            else:
                unknown.append(name)
        assert self.table.renew(names, holder, self.now) == tuple(unknown)

    @rule(lease_id=lease_ids, attempt=attempts, generation=generations)
    def release(self, lease_id: str, attempt: AttemptId, generation: int) -> None:
        expected = self._expected_release(lease_id, attempt, generation)
        assert self.table.release(lease_id, attempt, generation, self.now) == expected

    def _expected_release(self, lease_id: str, attempt: AttemptId, generation: int) -> Release:
        if self.expected.get(lease_id, (None, None))[1] == attempt:
            del self.expected[lease_id]
        lease = self.model.get(lease_id)
        if lease is None:
            return Release(ReleaseVerdict.UNKNOWN)
        if lease.attempt != attempt:
            return Release(ReleaseVerdict.WRONG_ATTEMPT)
        del self.model[lease_id]
        if lease.expires_at <= self.now:
            verdict = ReleaseVerdict.EXPIRED
        elif lease.generation != generation:
            verdict = ReleaseVerdict.GENERATION_CHANGED
        else:
            verdict = ReleaseVerdict.HELD
        return Release(verdict, tuple(lease.blocks))

    @rule()
    def sweep(self) -> None:
        expired = {
            name: self.model.pop(name)
            for name, lease in list(self.model.items())
            if lease.expires_at <= self.now
        }
        ended = self.table.sweep(self.now)
        assert len(ended) == len(expired)
        for lease in ended:
            model = expired[lease.lease_id]
            assert lease.block_ids == tuple(model.blocks)
            assert (lease.holder, lease.attempt) == (model.holder, model.attempt)

    @rule(holder=holders)
    def drop_holder(self, holder: WorkerIdentity) -> None:
        dropped = {
            name: self.model.pop(name)
            for name, lease in list(self.model.items())
            if lease.holder == holder
        }
        for name in [name for name, (who, _) in self.expected.items() if who == holder]:
            del self.expected[name]
        ended = self.table.drop_holder(holder)
        assert {lease.lease_id: lease.block_ids for lease in ended} == {
            name: tuple(lease.blocks) for name, lease in dropped.items()
        }

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert len(self.table) == len(self.model)
        earliest = min((lease.expires_at for lease in self.model.values()), default=None)
        assert self.table.next_expiry() == earliest


LeaseMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeaseTable = LeaseMachine.TestCase


def test_a_block_under_two_leases_comes_back_from_each() -> None:
    table = LeaseTable(LEASE_SECONDS)
    for number, holder in enumerate(HOLDERS[1:]):
        table.expect(f"l{number}", holder, ATTEMPTS[0])
        table.open(f"l{number}", 1, expires_at=10.0)
        table.add_blocks(f"l{number}", [7, 8])
    assert table.release("l0", ATTEMPTS[0], 1, now=1.0).block_ids == (7, 8)
    assert table.release("l0", ATTEMPTS[0], 1, now=1.0) == Release(ReleaseVerdict.UNKNOWN)
    assert [lease.block_ids for lease in table.sweep(10.0)] == [(7, 8)]
    assert table.sweep(1e9) == []


def test_renewed_leases_take_no_room() -> None:
    """The expiry list must not grow with heartbeats."""
    table = LeaseTable(LEASE_SECONDS)
    table.expect("l", HOLDERS[0], ATTEMPTS[0])
    table.open("l", 1, expires_at=10.0)
    for step in range(1000):
        now = step * 0.5
        assert table.renew(["l"], HOLDERS[0], now) == ()
        assert table.sweep(now) == []
    assert len(table._expiries) == 1
    assert table.next_expiry() == 999 * 0.5 + LEASE_SECONDS


def test_a_renewal_that_overtakes_the_opening_says_nothing_of_a_loss() -> None:
    """The reader agrees, renews, and only then is its answer heard here."""
    table = LeaseTable(LEASE_SECONDS)
    table.expect("l", HOLDERS[0], ATTEMPTS[0])
    assert table.renew(["l"], HOLDERS[0], now=1.0) == ()
    assert table.next_expiry() is None, "its time has not begun"
    table.open("l", 1, expires_at=12.0)
    assert table.renew(["l"], HOLDERS[0], now=11.0) == ()
    assert table.next_expiry() == 21.0
    assert table.renew(["l"], HOLDERS[0], now=21.0) == ("l",)
