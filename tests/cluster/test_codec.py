"""Everything that crosses a process boundary arrives as it was sent."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import FailureKind, InvalidRequest
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    Failure,
    MigrationOrder,
    MigrationReport,
    RebindOrder,
    RebindOutcome,
    RebindReport,
    Reservation,
    TokenDelta,
)
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.request import FinishReason, GenerationRequest, SamplingParams, StopRule
from segue.cluster.retention import Retention, RetentionRange
from segue.cluster.rpc import codec, serving_pb2
from segue.cluster.rpc.migration_codec import (
    migration_from_pb,
    migration_report_from_pb,
    migration_report_to_pb,
    migration_to_pb,
)
from segue.cluster.rpc.rebind_codec import (
    rebind_from_pb,
    rebind_report_from_pb,
    rebind_report_to_pb,
    rebind_to_pb,
)
from segue.cluster.rpc.retention_codec import retention_from_pb

names = st.text(min_size=1, max_size=8).filter(lambda s: s.isprintable())
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
identities = st.builds(WorkerIdentity, names, names)
peers = st.builds(Peer, identities, names)
attempts = st.builds(AttemptId, names, st.integers(0, 2**32 - 1))
unit = st.floats(0, 1)
samplings = st.builds(
    SamplingParams,
    st.floats(0, 2),
    unit,
    st.integers(0, 2**32 - 1),
    unit,
    st.integers(0, 2**64 - 1),
)
durations = st.none() | st.floats(0.001, 1e12)
priorities = st.integers(0, 100)


@st.composite
def retentions(draw: st.DrawFn) -> Retention:
    bounds = sorted(draw(st.sets(st.integers(0, 2**32 - 1), max_size=6)))
    open_ended = len(bounds) % 2 == 1
    ends = [*bounds[1::2], *([None] if open_ended else [])]
    ranges = [
        RetentionRange(start, end, draw(priorities), draw(durations))
        for start, end in zip(bounds[::2], ends, strict=True)
    ]
    return Retention(tuple(ranges), draw(priorities), draw(durations))


requests = st.builds(
    GenerationRequest,
    names,
    tokens.filter(bool),
    samplings,
    st.builds(
        StopRule,
        st.integers(6, 2**32 - 1),
        st.integers(0, 5),
        st.frozensets(st.integers(0, 2**32 - 1), max_size=3),
    ),
    names,
    st.integers(-(2**31), 2**31 - 1),
    st.just(Retention()) | retentions(),
)
assignments = st.builds(
    Assignment, requests, st.integers(0, 100), tokens, names, st.floats(0, 1e9), st.floats(0, 1e9)
)
failures = st.builds(Failure, st.sampled_from(FailureKind), names, st.booleans())


@given(assignments, peers, names, st.floats(0, 1e6), identities)
def test_reservation_round_trip(
    assignment: Assignment, source: Peer, lease: str, wait: float, target: WorkerIdentity
) -> None:
    sent = Reservation(assignment, source, lease, wait, grows=wait > 1)
    wire = codec.reservation_to_pb(target, sent).SerializeToString()
    message = serving_pb2.ReserveRequest.FromString(wire)
    assert codec.reservation_from_pb(message) == sent
    assert codec.identity_from_pb(message.target) == target


@given(
    st.builds(
        TokenDelta,
        attempts,
        st.integers(0, 2**32 - 1),
        tokens,
        st.sampled_from([None, FinishReason.STOP, FinishReason.LENGTH]),
        st.none() | failures,
        st.integers(0, 1000),
    )
)
def test_delta_round_trip(delta: TokenDelta) -> None:
    wire = codec.delta_to_pb(delta).SerializeToString()
    assert codec.delta_from_pb(serving_pb2.TokenDelta.FromString(wire)) == delta


@given(peers, attempts, st.integers(0, 9), tokens, st.none() | st.integers(0, 2**32 - 1))
def test_announcement_round_trip(
    source: Peer, attempt: AttemptId, first: int, blocks: tuple[int, ...], token: int | None
) -> None:
    sums = tuple(block * 2**31 for block in blocks)
    more = () if token is None else blocks
    sent = Announcement(
        source, attempt, 7, first, blocks, sums, token, token_ids=more, answer_when_read=bool(more)
    )
    wire = codec.announcement_to_pb(source.identity, sent).SerializeToString()
    assert codec.announcement_from_pb(serving_pb2.AnnounceRequest.FromString(wire)) == sent


@given(peers, attempts, st.integers(0, 9), st.integers(1, 9))
def test_a_part_of_layers_makes_a_round_trip(
    source: Peer, attempt: AttemptId, first: int, count: int
) -> None:
    sent = Announcement(
        source, attempt, 7, 2, (5,), (), first_layer=first, stop_layer=first + count
    )
    wire = codec.announcement_to_pb(source.identity, sent).SerializeToString()
    assert codec.announcement_from_pb(serving_pb2.AnnounceRequest.FromString(wire)) == sent


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"first_layer": 3}, "first_layer 3 is not before stop_layer 3"),
        ({"block_ids": ()}, "needs block_ids"),
        ({"checksums": (1,)}, "has no checksums"),
        ({"first_token": 4}, "is not last"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(changes: dict[str, Any], named: str) -> None:
    peer = Peer(WorkerIdentity("w", "1"), "host:1")
    part = Announcement(peer, AttemptId("r", 1), 7, 0, (5,), (), first_layer=1, stop_layer=3)
    wire = codec.announcement_to_pb(peer.identity, replace(part, **changes))
    with pytest.raises(InvalidRequest, match=named):
        codec.announcement_from_pb(wire)


def test_a_retention_that_makes_no_sense_is_refused() -> None:
    message = serving_pb2.Retention(decode_priority=101)
    with pytest.raises(InvalidRequest, match=r"priority lies in 0\.\.100"):
        retention_from_pb(message)


def test_incomplete_messages_name_what_is_missing() -> None:
    with pytest.raises(InvalidRequest, match="incarnation"):
        codec.identity_from_pb(serving_pb2.WorkerIdentity(worker_id="a"))
    with pytest.raises(InvalidRequest, match="prompt_token_ids"):
        codec.assignment_from_pb(serving_pb2.Assignment())
    with pytest.raises(InvalidRequest, match="failure kind"):
        codec.failure_from_pb(serving_pb2.Failure(kind="surprise"))


@pytest.mark.parametrize("waited", [-1.0, float("inf"), float("nan")])
def test_a_place_that_means_nothing_is_refused(waited: float) -> None:
    request = GenerationRequest("r", (1,), SamplingParams(), StopRule(2))
    message = codec.assignment_to_pb(Assignment(request, 1, (), "g", 1.0, waited))
    with pytest.raises(InvalidRequest, match="waited_seconds"):
        codec.assignment_from_pb(message)


@given(attempts, peers, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), identities)
def test_migration_round_trip(
    attempt: AttemptId, destination: Peer, number: int, known: int, target: WorkerIdentity
) -> None:
    sent = MigrationOrder(attempt, destination, number, known)
    wire = migration_to_pb(target, sent).SerializeToString()
    message = serving_pb2.MigrateRequest.FromString(wire)
    assert migration_from_pb(message) == sent
    assert codec.identity_from_pb(message.target) == target
    assert sent.new_id == AttemptId(attempt.request_id, number)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.floats(0, 1e9))
def test_migration_report_round_trip(number: int, num_bytes: int, seconds: float) -> None:
    sent = MigrationReport(number, number // 2, num_bytes, number // 3, seconds)
    wire = migration_report_to_pb(sent).SerializeToString()
    assert migration_report_from_pb(serving_pb2.MigrateReply.FromString(wire)) == sent


def test_rebinding_round_trip() -> None:
    target, decode = WorkerIdentity("prefill-0", "aa"), WorkerIdentity("decode-1", "bb")
    sent = RebindOrder(AttemptId("r", 3), Peer(decode, "h:1"), 0.5)
    message = serving_pb2.RebindRequest.FromString(rebind_to_pb(target, sent).SerializeToString())
    assert rebind_from_pb(message) == sent
    assert codec.identity_from_pb(message.target) == target
    for outcome in RebindOutcome:
        report = RebindReport(outcome, "why")
        assert rebind_report_from_pb(rebind_report_to_pb(report)) == report
