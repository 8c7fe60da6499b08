"""What gateway, prefill and decode workers say to each other about one attempt."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.identity import AttemptId, Peer
from segue.cluster.request import FinishReason, GenerationRequest


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended without an answer, as data."""

    kind: FailureKind
    message: str
    retryable: bool = True

    def to_error(self) -> AttemptFailed:
        return AttemptFailed(self.kind, self.message, retryable=self.retryable)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at a request, resumed behind the tokens that earlier attempts produced.

    `waited_seconds`: since its gateway took the request on, so that it keeps its place wherever it
    goes. An age and no instant: the clocks of two hosts have nothing in common.
    """

    request: GenerationRequest
    attempt: int
    produced_token_ids: tuple[int, ...]
    gateway_id: str
    timeout_seconds: float
    waited_seconds: float = 0.0

    @property
    def attempt_id(self) -> AttemptId:
        return AttemptId(self.request.request_id, self.attempt)


class TokenDelta(NamedTuple):
    """New tokens of one attempt; the first stands at absolute `position`."""

    attempt: AttemptId
    position: int
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    failure: Failure | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """A source asks a decode worker for room: the prompt and the whole answer.

    `grows`: the request moves. The source holds its KV and generates meanwhile, so that more blocks
    than the assignment's tokens need will be announced.
    """

    assignment: Assignment
    source: Peer
    lease_id: str
    wait_seconds: float
    grows: bool = False


@dataclass(frozen=True, slots=True)
class ReserveOutcome:
    """A credit (`failure` is None) or a refusal.

    The first `num_cached_blocks` blocks of the prompt are at the target already.
    """

    num_cached_blocks: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Announcement:
    """Blocks [first_block, first_block + len(block_ids)) of the prompt may be read now.

    With a `stop_layer` only their layers [first_layer, stop_layer): a part, told while the layers
    behind it are computed. The same blocks are announced again then, until once to the last layer;
    that one has the checksums, and begins at layer 0 if the parts must be read again.

    A reference to blocks is never ids alone: it names the source's incarnation, the generation of
    its pool, and the attempt, and is checked against each of them.
    """

    source: Peer
    attempt: AttemptId
    pool_generation: int
    first_block: int
    block_ids: tuple[int, ...]
    checksums: tuple[int, ...]
    first_token: int | None = None  # set in the last announcement of an attempt, and only there
    cached_tokens: int = 0  # with it: prompt tokens that the source found in its cache
    # With it, of a request that moves while it generates: what followed the assignment's tokens.
    token_ids: tuple[int, ...] = ()
    answer_when_read: bool = False  # not before all that was announced so far has been read
    first_layer: int = 0
    stop_layer: int | None = None  # None: to the last layer

    @property
    def is_part(self) -> bool:
        return self.stop_layer is not None


@dataclass(frozen=True, slots=True)
class LeaseRelease:
    lease_id: str
    attempt: AttemptId
    pool_generation: int
    completed: bool


@dataclass(frozen=True, slots=True)
class LeaseVerdict:
    """`held`: the blocks could not have changed while they were read."""

    held: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RebindOrder:
    """Ask `decode` too for the credit that an attempt waits for, for at most `wait_seconds`."""

    attempt: AttemptId
    decode: Peer
    wait_seconds: float


class RebindOutcome(StrEnum):
    MOVED = "moved"  # it granted: the answer will be written there
    REFUSED = "refused"  # it has no room, or is not asked (again)
    SETTLED = "settled"  # the attempt waits for no credit (any more)


@dataclass(frozen=True, slots=True)
class RebindReport:
    outcome: RebindOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MigrationOrder:
    """Move an attempt that generates to `destination`, which goes on under another number.

    The gateway has every token before `known_position`; the destination tells all that follow.
    """

    attempt: AttemptId
    destination: Peer
    new_attempt: int
    known_position: int

    @property
    def new_id(self) -> AttemptId:
        return AttemptId(self.attempt.request_id, self.new_attempt)


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What was moved. `stopped`: after the source had drawn its last token."""

    num_tokens: int
    num_blocks: int
    num_bytes: int
    num_blocks_stopped: int
    stopped_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a peer must know before it reads this worker's blocks."""

    peer: Peer
    role: str
    fingerprint: dict[str, str]
    transport: str
    transport_metadata: bytes
    pool_generation: int
    num_blocks: int
    probe_bytes: int = 0  # length of the pattern that lies behind the blocks
