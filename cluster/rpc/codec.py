"""Translates between the dataclasses of cluster/ and protobuf messages; checks what arrives.

A message that lacks a part or holds a value outside its enum raises InvalidRequest that names it.
"""

import math

from segue.cluster.errors import FailureKind, InvalidRequest
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    Failure,
    LeaseRelease,
    Reservation,
    ReserveOutcome,
    TokenDelta,
    WorkerDescription,
)
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.request import FinishReason, GenerationRequest, SamplingParams, StopRule
from segue.cluster.retention import Retention
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc.retention_codec import retention_from_pb, retention_to_pb
from segue.cluster.step_trace import StepReason, StepRecord, StepWork

_FINISH_TO_PB = {None: pb.NOT_FINISHED, FinishReason.STOP: pb.STOP, FinishReason.LENGTH: pb.LENGTH}
_FINISH_FROM_PB: dict[int, FinishReason | None] = {
    int(wire): reason for reason, wire in _FINISH_TO_PB.items()
}


def identity_to_pb(identity: WorkerIdentity) -> pb.WorkerIdentity:
    return pb.WorkerIdentity(worker_id=identity.worker_id, incarnation=identity.incarnation)


def identity_from_pb(message: pb.WorkerIdentity) -> WorkerIdentity:
    if not message.worker_id or not message.incarnation:
        raise InvalidRequest("a worker identity needs worker_id and incarnation")
    return WorkerIdentity(message.worker_id, message.incarnation)


def peer_to_pb(peer: Peer) -> pb.Peer:
    return pb.Peer(identity=identity_to_pb(peer.identity), address=peer.address)


def peer_from_pb(message: pb.Peer) -> Peer:
    if not message.address:
        raise InvalidRequest("a peer needs an address")
    return Peer(identity_from_pb(message.identity), message.address)


def attempt_to_pb(attempt: AttemptId) -> pb.AttemptId:
    return pb.AttemptId(request_id=attempt.request_id, attempt=attempt.attempt)


def attempt_from_pb(message: pb.AttemptId) -> AttemptId:
    if not message.request_id:
        raise InvalidRequest("an attempt needs a request_id")
    return AttemptId(message.request_id, message.attempt)


def failure_to_pb(failure: Failure) -> pb.Failure:
    return pb.Failure(kind=failure.kind.value, message=failure.message, retryable=failure.retryable)


def failure_from_pb(message: pb.Failure) -> Failure:
    try:
        kind = FailureKind(message.kind)
    except ValueError:
        raise InvalidRequest(f"unknown failure kind '{message.kind}'") from None
    return Failure(kind, message.message, message.retryable)


def _request_to_pb(request: GenerationRequest) -> pb.Request:
    sampling, stop = request.sampling, request.stop
    return pb.Request(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=pb.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed % 2**64,
        ),
        stop=pb.StopRule(
            max_tokens=stop.max_tokens,
            min_tokens=stop.min_tokens,
            stop_token_ids=sorted(stop.stop_token_ids),
        ),
        cache_salt=request.cache_salt,
        priority=request.priority,
        retention=retention_to_pb(request.retention),
    )


def _request_from_pb(message: pb.Request) -> GenerationRequest:
    if not message.prompt_token_ids:
        raise InvalidRequest("prompt_token_ids is empty", param="prompt")
    if message.stop.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    sampling, stop = message.sampling, message.stop
    return GenerationRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling=SamplingParams(
            sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed
        ),
        stop=StopRule(stop.max_tokens, stop.min_tokens, frozenset(stop.stop_token_ids)),
        cache_salt=message.cache_salt,
        priority=message.priority,
        retention=(
            retention_from_pb(message.retention) if message.HasField("retention") else Retention()
        ),
    )


def assignment_to_pb(assignment: Assignment) -> pb.Assignment:
    return pb.Assignment(
        request=_request_to_pb(assignment.request),
        attempt=assignment.attempt,
        produced_token_ids=assignment.produced_token_ids,
        gateway_id=assignment.gateway_id,
        timeout_seconds=assignment.timeout_seconds,
        waited_seconds=assignment.waited_seconds,
    )


def assignment_from_pb(message: pb.Assignment) -> Assignment:
    request = _request_from_pb(message.request)
    if not request.request_id or not message.gateway_id:
        raise InvalidRequest("an assignment needs a request_id and a gateway_id")
    produced = tuple(message.produced_token_ids)
    if len(produced) >= request.stop.max_tokens:
        raise InvalidRequest("an assignment must leave at least one token to produce")
    waited = message.waited_seconds
    if not 0 <= waited < math.inf:
        raise InvalidRequest(f"waited_seconds must be finite and not negative, got {waited}")
    return Assignment(
        request, message.attempt, produced, message.gateway_id, message.timeout_seconds, waited
    )


def delta_to_pb(delta: TokenDelta) -> pb.TokenDelta:
    message = pb.TokenDelta(
        attempt=attempt_to_pb(delta.attempt),
        position=delta.position,
        token_ids=delta.token_ids,
        finish=_FINISH_TO_PB[delta.finish],
        cached_tokens=delta.cached_tokens,
    )
    if delta.failure is not None:
        message.failure.CopyFrom(failure_to_pb(delta.failure))
    return message


def delta_from_pb(message: pb.TokenDelta) -> TokenDelta:
    return TokenDelta(
        AttemptId(message.attempt.request_id, message.attempt.attempt),
        message.position,
        tuple(message.token_ids),
        _FINISH_FROM_PB[message.finish],
        failure_from_pb(message.failure) if message.HasField("failure") else None,
        message.cached_tokens,
    )


def reservation_to_pb(target: WorkerIdentity, reservation: Reservation) -> pb.ReserveRequest:
    return pb.ReserveRequest(
        target=identity_to_pb(target),
        assignment=assignment_to_pb(reservation.assignment),
        source=peer_to_pb(reservation.source),
        lease_id=reservation.lease_id,
        wait_seconds=reservation.wait_seconds,
        grows=reservation.grows,
    )


def reservation_from_pb(message: pb.ReserveRequest) -> Reservation:
    if not message.lease_id:
        raise InvalidRequest("a reservation needs a lease_id")
    return Reservation(
        assignment_from_pb(message.assignment),
        peer_from_pb(message.source),
        message.lease_id,
        message.wait_seconds,
        message.grows,
    )


def outcome_to_pb(outcome: ReserveOutcome) -> pb.ReserveReply:
    if outcome.failure is not None:
        return pb.ReserveReply(granted=False, refusal=failure_to_pb(outcome.failure))
    return pb.ReserveReply(granted=True, num_cached_blocks=outcome.num_cached_blocks)


def outcome_from_pb(message: pb.ReserveReply) -> ReserveOutcome:
    if not message.granted:
        return ReserveOutcome(failure=failure_from_pb(message.refusal))
    return ReserveOutcome(message.num_cached_blocks)


def announcement_to_pb(target: WorkerIdentity, item: Announcement) -> pb.AnnounceRequest:
    return pb.AnnounceRequest(
        target=identity_to_pb(target),
        source=peer_to_pb(item.source),
        attempt=attempt_to_pb(item.attempt),
        pool_generation=item.pool_generation,
        first_block=item.first_block,
        block_ids=item.block_ids,
        checksums=item.checksums,
        last=item.first_token is not None,
        first_token=item.first_token or 0,
        cached_tokens=item.cached_tokens,
        token_ids=item.token_ids,
        answer_when_read=item.answer_when_read,
        first_layer=item.first_layer,
        stop_layer=item.stop_layer or 0,
    )


def announcement_from_pb(message: pb.AnnounceRequest) -> Announcement:
    if message.checksums and len(message.checksums) != len(message.block_ids):
        raise InvalidRequest("an announcement needs one checksum for each block, or none")
    if message.stop_layer:
        _check_part(message)
    return Announcement(
        source=peer_from_pb(message.source),
        attempt=attempt_from_pb(message.attempt),
        pool_generation=message.pool_generation,
        first_block=message.first_block,
        block_ids=tuple(message.block_ids),
        checksums=tuple(message.checksums),
        first_token=message.first_token if message.last else None,
        cached_tokens=message.cached_tokens,
        token_ids=tuple(message.token_ids),
        answer_when_read=message.answer_when_read,
        first_layer=message.first_layer,
        stop_layer=message.stop_layer or None,
    )


def _check_part(message: pb.AnnounceRequest) -> None:
    first, stop = message.first_layer, message.stop_layer
    if first >= stop:
        raise InvalidRequest(f"first_layer {first} is not before stop_layer {stop}")
    if not message.block_ids:
        raise InvalidRequest("an announcement with a stop_layer needs block_ids")
    if message.checksums or message.last:
        raise InvalidRequest("an announcement with a stop_layer has no checksums and is not last")


def release_to_pb(target: WorkerIdentity, release: LeaseRelease) -> pb.ReleaseRequest:
    return pb.ReleaseRequest(
        target=identity_to_pb(target),
        lease_id=release.lease_id,
        attempt=attempt_to_pb(release.attempt),
        pool_generation=release.pool_generation,
        completed=release.completed,
    )


def release_from_pb(message: pb.ReleaseRequest) -> LeaseRelease:
    return LeaseRelease(
        message.lease_id,
        attempt_from_pb(message.attempt),
        message.pool_generation,
        message.completed,
    )


def description_to_pb(description: WorkerDescription) -> pb.WorkerDescription:
    return pb.WorkerDescription(
        peer=peer_to_pb(description.peer),
        role=description.role,
        fingerprint=description.fingerprint,
        transport=description.transport,
        transport_metadata=description.transport_metadata,
        pool_generation=description.pool_generation,
        num_blocks=description.num_blocks,
        probe_bytes=description.probe_bytes,
    )


def description_from_pb(message: pb.WorkerDescription) -> WorkerDescription:
    return WorkerDescription(
        peer_from_pb(message.peer),
        message.role,
        dict(message.fingerprint),
        message.transport,
        message.transport_metadata,
        message.pool_generation,
        message.num_blocks,
        message.probe_bytes,
    )


def step_to_pb(step: StepRecord) -> pb.StepRecord:
    return pb.StepRecord(
        number=step.number,
        began=step.began,
        ended=step.ended,
        context=[
            pb.StepWork(attempt=work.attempt, start=work.start, num_tokens=work.num_tokens)
            for work in step.context
        ],
        generation=step.generation,
        reasons=[
            pb.StepReason(attempt=reason.attempt, reason=reason.reason) for reason in step.reasons
        ],
        free_blocks=step.free_blocks,
    )


def step_from_pb(message: pb.StepRecord) -> StepRecord:
    return StepRecord(
        message.number,
        message.began,
        message.ended,
        tuple(StepWork(work.attempt, work.start, work.num_tokens) for work in message.context),
        tuple(message.generation),
        tuple(StepReason(reason.attempt, reason.reason) for reason in message.reasons),
        message.free_blocks,
    )
