"""What an engine step has to say to the rest of its worker."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.request import FinishReason
from segue.workers.generation_batch import Ids
from segue.workers.sequence import Sequence


class ChunkReady(NamedTuple):
    """Blocks of a sequence that is handed off: computed, and leased from now on.

    With a `stop_layer` only their layers [first_layer, stop_layer) are computed so far; the same
    blocks come again then, until once without. `leases`: they were leased for this one, and not
    for one before it.
    """

    sequence: Sequence
    first_block: int
    block_ids: tuple[int, ...]
    checksums: tuple[int, ...]
    first_token: int | None  # set with the last chunk of a context
    first_layer: int = 0
    stop_layer: int | None = None
    leases: bool = True


class Ended(NamedTuple):
    """A sequence left the engine: with an answer's end, or with a failure."""

    sequence: Sequence
    finish: FinishReason | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class GeneratedTokens:
    """One token of each sequence that generates, as columns: taken apart where frames are made."""

    sequences: tuple[Sequence, ...]
    positions: Ids
    tokens: Ids
    finishes: dict[Sequence, FinishReason]

    def deltas(self) -> Iterator[tuple[str, TokenDelta]]:
        columns = zip(self.sequences, self.positions.tolist(), self.tokens.tolist(), strict=True)
        for sequence, position, token in columns:
            finish = self.finishes.get(sequence)
            delta = TokenDelta(sequence.attempt, position, (token,), finish)
            yield sequence.assignment.gateway_id, delta


@dataclass(slots=True)
class StepOutcome:
    """All that a step has to say. First tokens come before what follows them."""

    first_tokens: list[tuple[str, TokenDelta]] = field(default_factory=list)  # by gateway
    generated: GeneratedTokens | None = None
    granted: list[Sequence] = field(default_factory=list)
    chunks: list[ChunkReady] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.first_tokens or self.generated or self.granted or self.chunks or self.ended
        )

    def deltas(self) -> Iterator[tuple[str, TokenDelta]]:
        """Each with the gateway it is for, in the order in which they must be told."""
        yield from self.first_tokens
        if self.generated is not None:
            yield from self.generated.deltas()
