from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Finish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_FINISHED: _ClassVar[Finish]
    STOP: _ClassVar[Finish]
    LENGTH: _ClassVar[Finish]
NOT_FINISHED: Finish
STOP: Finish
LENGTH: Finish

class WorkerIdentity(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("identity", "address")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    identity: WorkerIdentity
    address: str
    def __init__(self, identity: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class AttemptId(_message.Message):
    __slots__ = ("request_id", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class StopRule(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop_token_ids")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RetentionRange(_message.Message):
    __slots__ = ("start", "end", "priority", "duration_seconds")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    priority: int
    duration_seconds: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., priority: _Optional[int] = ..., duration_seconds: _Optional[float] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("ranges", "decode_priority", "decode_duration_seconds")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    DECODE_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DECODE_DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[RetentionRange]
    decode_priority: int
    decode_duration_seconds: float
    def __init__(self, ranges: _Optional[_Iterable[_Union[RetentionRange, _Mapping]]] = ..., decode_priority: _Optional[int] = ..., decode_duration_seconds: _Optional[float] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "stop", "cache_salt", "priority", "retention")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    stop: StopRule
    cache_salt: str
    priority: int
    retention: Retention
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop: _Optional[_Union[StopRule, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("request", "attempt", "produced_token_ids", "gateway_id", "timeout_seconds", "waited_seconds")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    request: Request
    attempt: int
    produced_token_ids: _containers.RepeatedScalarFieldContainer[int]
    gateway_id: str
    timeout_seconds: float
    waited_seconds: float
    def __init__(self, request: _Optional[_Union[Request, _Mapping]] = ..., attempt: _Optional[int] = ..., produced_token_ids: _Optional[_Iterable[int]] = ..., gateway_id: _Optional[str] = ..., timeout_seconds: _Optional[float] = ..., waited_seconds: _Optional[float] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("target", "assignment", "decode")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    assignment: Assignment
    decode: Peer
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., decode: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("target", "attempts")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    attempts: _containers.RepeatedCompositeFieldContainer[AttemptId]
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[AttemptId, _Mapping]]] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FramesRequest(_message.Message):
    __slots__ = ("target", "gateway_id")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    gateway_id: str
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., gateway_id: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "retryable")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    retryable: bool
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("attempt", "position", "token_ids", "finish", "failure", "cached_tokens")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptId
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish: Finish
    failure: Failure
    cached_tokens: int
    def __init__(self, attempt: _Optional[_Union[AttemptId, _Mapping]] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish: _Optional[_Union[Finish, str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class StepFrame(_message.Message):
    __slots__ = ("sequence", "deltas")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    deltas: _containers.RepeatedCompositeFieldContainer[TokenDelta]
    def __init__(self, sequence: _Optional[int] = ..., deltas: _Optional[_Iterable[_Union[TokenDelta, _Mapping]]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("target", "assignment", "source", "lease_id", "wait_seconds", "grows")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GROWS_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    assignment: Assignment
    source: Peer
    lease_id: str
    wait_seconds: float
    grows: bool
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., source: _Optional[_Union[Peer, _Mapping]] = ..., lease_id: _Optional[str] = ..., wait_seconds: _Optional[float] = ..., grows: _Optional[bool] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("granted", "num_cached_blocks", "refusal")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    num_cached_blocks: int
    refusal: Failure
    def __init__(self, granted: _Optional[bool] = ..., num_cached_blocks: _Optional[int] = ..., refusal: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class AnnounceRequest(_message.Message):
    __slots__ = ("target", "source", "attempt", "pool_generation", "first_block", "block_ids", "checksums", "last", "first_token", "cached_tokens", "token_ids", "answer_when_read", "first_layer", "stop_layer")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    POOL_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_WHEN_READ_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    STOP_LAYER_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    source: Peer
    attempt: AttemptId
    pool_generation: int
    first_block: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    last: bool
    first_token: int
    cached_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    answer_when_read: bool
    first_layer: int
    stop_layer: int
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., source: _Optional[_Union[Peer, _Mapping]] = ..., attempt: _Optional[_Union[AttemptId, _Mapping]] = ..., pool_generation: _Optional[int] = ..., first_block: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., checksums: _Optional[_Iterable[int]] = ..., last: _Optional[bool] = ..., first_token: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., answer_when_read: _Optional[bool] = ..., first_layer: _Optional[int] = ..., stop_layer: _Optional[int] = ...) -> None: ...

class AnnounceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("target", "source", "attempt", "reason")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    source: Peer
    attempt: AttemptId
    reason: str
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., source: _Optional[_Union[Peer, _Mapping]] = ..., attempt: _Optional[_Union[AttemptId, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("target", "lease_id", "attempt", "pool_generation", "completed")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    POOL_GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    lease_id: str
    attempt: AttemptId
    pool_generation: int
    completed: bool
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., lease_id: _Optional[str] = ..., attempt: _Optional[_Union[AttemptId, _Mapping]] = ..., pool_generation: _Optional[int] = ..., completed: _Optional[bool] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("held", "reason")
    HELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    held: bool
    reason: str
    def __init__(self, held: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("target", "lease_ids", "holder")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    holder: WorkerIdentity
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., lease_ids: _Optional[_Iterable[str]] = ..., holder: _Optional[_Union[WorkerIdentity, _Mapping]] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("unknown_lease_ids",)
    UNKNOWN_LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    unknown_lease_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unknown_lease_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RebindRequest(_message.Message):
    __slots__ = ("target", "attempt", "decode", "wait_seconds")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    attempt: AttemptId
    decode: Peer
    wait_seconds: float
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., attempt: _Optional[_Union[AttemptId, _Mapping]] = ..., decode: _Optional[_Union[Peer, _Mapping]] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class RebindReply(_message.Message):
    __slots__ = ("outcome", "reason")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    reason: str
    def __init__(self, outcome: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class MigrateRequest(_message.Message):
    __slots__ = ("target", "attempt", "destination", "new_attempt", "known_position")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    NEW_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_POSITION_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    attempt: AttemptId
    destination: Peer
    new_attempt: int
    known_position: int
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., attempt: _Optional[_Union[AttemptId, _Mapping]] = ..., destination: _Optional[_Union[Peer, _Mapping]] = ..., new_attempt: _Optional[int] = ..., known_position: _Optional[int] = ...) -> None: ...

class MigrateReply(_message.Message):
    __slots__ = ("num_tokens", "num_blocks", "num_bytes", "num_blocks_stopped", "stopped_seconds")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    num_blocks: int
    num_bytes: int
    num_blocks_stopped: int
    stopped_seconds: float
    def __init__(self, num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., num_blocks_stopped: _Optional[int] = ..., stopped_seconds: _Optional[float] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("target", "reason")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    reason: str
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ...) -> None: ...

class WorkerDescription(_message.Message):
    __slots__ = ("peer", "role", "fingerprint", "transport", "transport_metadata", "pool_generation", "num_blocks", "probe_bytes")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_METADATA_FIELD_NUMBER: _ClassVar[int]
    POOL_GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROBE_BYTES_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    role: str
    fingerprint: _containers.ScalarMap[str, str]
    transport: str
    transport_metadata: bytes
    pool_generation: int
    num_blocks: int
    probe_bytes: int
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., role: _Optional[str] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., transport: _Optional[str] = ..., transport_metadata: _Optional[bytes] = ..., pool_generation: _Optional[int] = ..., num_blocks: _Optional[int] = ..., probe_bytes: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PairReport(_message.Message):
    __slots__ = ("source", "transport", "detail", "is_measured", "gigabytes_per_second", "seconds_ago", "refusal", "retry_seconds")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    IS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    GIGABYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RETRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    source: WorkerIdentity
    transport: str
    detail: str
    is_measured: bool
    gigabytes_per_second: float
    seconds_ago: float
    refusal: str
    retry_seconds: float
    def __init__(self, source: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., transport: _Optional[str] = ..., detail: _Optional[str] = ..., is_measured: _Optional[bool] = ..., gigabytes_per_second: _Optional[float] = ..., seconds_ago: _Optional[float] = ..., refusal: _Optional[str] = ..., retry_seconds: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("identity", "role", "state", "gauges", "counters", "transport", "stuck_seconds", "cause", "pairs")
    class GaugesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    STUCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    identity: WorkerIdentity
    role: str
    state: str
    gauges: _containers.ScalarMap[str, float]
    counters: _containers.ScalarMap[str, float]
    transport: str
    stuck_seconds: float
    cause: str
    pairs: _containers.RepeatedCompositeFieldContainer[PairReport]
    def __init__(self, identity: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., gauges: _Optional[_Mapping[str, float]] = ..., counters: _Optional[_Mapping[str, float]] = ..., transport: _Optional[str] = ..., stuck_seconds: _Optional[float] = ..., cause: _Optional[str] = ..., pairs: _Optional[_Iterable[_Union[PairReport, _Mapping]]] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("target", "num_steps")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    target: WorkerIdentity
    num_steps: int
    def __init__(self, target: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., num_steps: _Optional[int] = ...) -> None: ...

class StepWork(_message.Message):
    __slots__ = ("attempt", "start", "num_tokens")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    start: int
    num_tokens: int
    def __init__(self, attempt: _Optional[str] = ..., start: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class StepReason(_message.Message):
    __slots__ = ("attempt", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    reason: str
    def __init__(self, attempt: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("number", "began", "ended", "context", "generation", "reasons", "free_blocks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    began: float
    ended: float
    context: _containers.RepeatedCompositeFieldContainer[StepWork]
    generation: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedCompositeFieldContainer[StepReason]
    free_blocks: int
    def __init__(self, number: _Optional[int] = ..., began: _Optional[float] = ..., ended: _Optional[float] = ..., context: _Optional[_Iterable[_Union[StepWork, _Mapping]]] = ..., generation: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[_Union[StepReason, _Mapping]]] = ..., free_blocks: _Optional[int] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepRecord]
    def __init__(self, steps: _Optional[_Iterable[_Union[StepRecord, _Mapping]]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("peer", "pool", "role", "fingerprint", "pid")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PEER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    pool: str
    role: str
    fingerprint: _containers.ScalarMap[str, str]
    pid: int
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., pool: _Optional[str] = ..., role: _Optional[str] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., pid: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("accepted", "reason", "heartbeat_seconds")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    heartbeat_seconds: float
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("identity", "status")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    identity: WorkerIdentity
    status: WorkerStatus
    def __init__(self, identity: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., status: _Optional[_Union[WorkerStatus, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("known", "sources", "writers")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    known: bool
    sources: _containers.RepeatedCompositeFieldContainer[Peer]
    writers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, known: _Optional[bool] = ..., sources: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., writers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class WorkerRecord(_message.Message):
    __slots__ = ("peer", "pool", "role", "state", "reason", "state_seconds", "pid", "status", "restarts", "last_end", "deaths")
    class DeathsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PEER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LAST_END_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    pool: str
    role: str
    state: str
    reason: str
    state_seconds: float
    pid: int
    status: WorkerStatus
    restarts: int
    last_end: str
    deaths: _containers.ScalarMap[str, int]
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., pool: _Optional[str] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., state_seconds: _Optional[float] = ..., pid: _Optional[int] = ..., status: _Optional[_Union[WorkerStatus, _Mapping]] = ..., restarts: _Optional[int] = ..., last_end: _Optional[str] = ..., deaths: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PoolRecord(_message.Message):
    __slots__ = ("name", "role", "desired", "ready", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    desired: int
    ready: int
    reason: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., desired: _Optional[int] = ..., ready: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetSnapshot(_message.Message):
    __slots__ = ("sequence", "controller_incarnation", "workers", "pools")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    controller_incarnation: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerRecord]
    pools: _containers.RepeatedCompositeFieldContainer[PoolRecord]
    def __init__(self, sequence: _Optional[int] = ..., controller_incarnation: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerRecord, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[PoolRecord, _Mapping]]] = ...) -> None: ...
