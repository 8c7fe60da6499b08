"""What the engine thread does for a sequence that moves to another worker while it generates.

    snapshot -> export* (whole blocks, while it goes on) -> halt -> dropped | take_back

Each of these runs between two steps. A piece that is returned is leased: whoever receives it puts
it under a lease or ends that. `exported` is how the event loop gets one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.workers.engine import Engine
from segue.workers.sequence import Phase, Sequence


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks of a sequence, computed and leased. The last one has what stands behind them."""

    first_block: int
    block_ids: tuple[int, ...]
    checksums: tuple[int, ...]
    token_ids: tuple[int, ...] = ()  # behind those that were known to the target
    last_token: int | None = None  # without KV so far


def snapshot(engine: Engine, sequence: Sequence) -> tuple[int, ...] | None:
    """The tokens whose KV is here. None: it does not generate (any more)."""
    if not _settled(engine, sequence):
        return None
    return tuple(sequence.tokens[: sequence.num_computed])


def export(engine: Engine, sequence: Sequence, first: int, limit: int) -> Piece | None:
    """At most `limit` whole blocks from block `first` on; there may be none yet."""
    if not _settled(engine, sequence):
        return None
    whole = sequence.num_computed // engine.cache.block_size
    return _leased(engine, sequence, first, min(whole, first + limit))


def halt(engine: Engine, sequence: Sequence, first: int, num_known: int) -> Piece | None:
    """Stop it, and give all from block `first` and token `num_known` on."""
    if not _settled(engine, sequence):
        return None
    blocks = engine.cache.blocks_for(sequence.num_computed)
    piece = _leased(engine, sequence, first, blocks)
    engine.scheduler.halt(sequence)
    tokens = tuple(sequence.tokens[num_known : sequence.num_computed])
    return Piece(first, piece.block_ids, piece.checksums, tokens, sequence.tokens[-1])


def take_back(engine: Engine, sequence: Sequence) -> None:
    """Nobody took over: it generates on, if it has not ended meanwhile."""
    if engine.holds(sequence) and sequence.phase is Phase.MIGRATING:
        engine.scheduler.start_generation(sequence)


def _settled(engine: Engine, sequence: Sequence) -> bool:
    if not engine.holds(sequence) or sequence.phase is not Phase.GENERATION:
        return False
    engine.scheduler.generation.settle(sequence)
    return True


def _leased(engine: Engine, sequence: Sequence, first: int, end: int) -> Piece:
    blocks = tuple(sequence.block_ids[first:end])
    sums = engine.checksums(blocks)
    engine.cache.pool.lease(blocks)
    return Piece(first, blocks, sums)


async def exported(engine: Engine, action: Callable[[], Piece | None]) -> Piece:
    """Run one of the above in the engine thread. Raises AttemptFailed if there is nothing."""
    future = engine.call(action)

    def discard(done: "Future[Piece | None]") -> None:
        if done.exception() is None and (piece := done.result()) is not None:
            engine.post(lambda: engine.end_lease(piece.block_ids))

    try:
        piece = await asyncio.wrap_future(future)
    except asyncio.CancelledError:  # what it leases nobody will read
        future.add_done_callback(discard)
        raise
    if piece is None:
        raise AttemptFailed(FailureKind.REFUSED, "it has stopped generating meanwhile")
    return piece
