"""Decides which bytes of a peer go where: block pairs to few, long, bounded descriptors."""

from collections.abc import Iterable, Sequence

from segue.cluster.errors import TransferError
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.sharding import HeadMove, ShardedLayout, head_moves
from segue.kvtransfer.transport import ByteRange

# Long enough to amortise a descriptor, short enough that one read cannot occupy a link for long.
MAX_DESCRIPTOR_BYTES = 4 * 2**20

# One descriptor: (where at the peer, where with us), of equal length.
Piece = tuple[ByteRange, ByteRange]


def plan_blocks(
    theirs: KVLayout,
    ours: KVLayout,
    remote_blocks: Sequence[int],
    local_blocks: Sequence[int],
    max_bytes: int = MAX_DESCRIPTOR_BYTES,
    layers: range | None = None,
) -> list[Piece]:
    """Plan reading remote_blocks[i] into local_blocks[i]: these layers of them, or whole blocks.

    Raises TransferError if the lists cannot be paired, or a block or a layer does not exist.
    """
    _check_blocks(remote_blocks, local_blocks)
    if theirs.block_bytes != ours.block_bytes:
        raise TransferError(
            f"blocks of {theirs.block_bytes} bytes do not fit blocks of {ours.block_bytes}"
        )
    pairs = zip(remote_blocks, local_blocks, strict=True)
    if layers is None:
        return coalesce(((theirs.block_range(r), ours.block_range(b)) for r, b in pairs), max_bytes)
    first, stop = layers.start, layers.stop
    return coalesce(
        ((theirs.layer_range(r, first, stop), ours.layer_range(b, first, stop)) for r, b in pairs),
        max_bytes,
    )


def plan_resharded(
    source: ShardedLayout,
    target: ShardedLayout,
    target_rank: int,
    remote_blocks: Sequence[int],
    local_blocks: Sequence[int],
    max_bytes: int = MAX_DESCRIPTOR_BYTES,
) -> dict[int, list[Piece]]:
    """What one rank of `target` reads from which ranks of `source`, by source rank.

    Local block i is made whole from remote block i, scales included. Equal numbers of ranks give
    whole blocks of one rank, as `plan_blocks` does. Raises TransferError.
    """
    _check_blocks(remote_blocks, local_blocks)
    pairs = list(zip(remote_blocks, local_blocks, strict=True))
    by_rank: dict[int, list[HeadMove]] = {}
    for move in head_moves(source, target, target_rank):
        by_rank.setdefault(move.source_rank, []).append(move)
    theirs, ours = source.rank_layout, target.rank_layout
    return {
        rank: coalesce(
            (piece for move in moves for piece in _moved(theirs, ours, move, pairs)), max_bytes
        )
        for rank, moves in by_rank.items()
    }


def _moved(
    theirs: KVLayout, ours: KVLayout, move: HeadMove, pairs: Sequence[tuple[int, int]]
) -> Iterable[Piece]:
    """Block by block, layer by layer, keys before values: as the bytes lie in either memory."""
    for remote, local in pairs:
        yield from zip(
            theirs.head_ranges(remote, move.source_head, move.source_head + move.num_heads),
            ours.head_ranges(local, move.target_head, move.target_head + move.num_heads),
            strict=True,
        )


def coalesce(pieces: Iterable[Piece], max_bytes: int = MAX_DESCRIPTOR_BYTES) -> list[Piece]:
    """Merge neighbours that are contiguous on both sides, then cut at `max_bytes`.

    The order of bytes is kept; every byte of every piece appears exactly once.
    """
    if max_bytes < 1:
        raise TransferError(f"max_bytes must be at least 1, got {max_bytes}")
    runs: list[Piece] = []
    for remote, local in pieces:
        if remote.length != local.length:
            raise TransferError(f"{remote.length} bytes cannot fill {local.length}")
        if runs and runs[-1][0].end == remote.offset and runs[-1][1].end == local.offset:
            before_remote, before_local = runs[-1]
            length = before_remote.length + remote.length
            runs[-1] = (
                ByteRange(before_remote.offset, length),
                ByteRange(before_local.offset, length),
            )
        else:
            runs.append((remote, local))
    return [part for remote, local in runs for part in _cut(remote, local, max_bytes)]


def _check_blocks(remote_blocks: Sequence[int], local_blocks: Sequence[int]) -> None:
    if len(remote_blocks) != len(local_blocks):
        raise TransferError(f"{len(remote_blocks)} blocks cannot fill {len(local_blocks)}")
    if len(set(local_blocks)) != len(local_blocks):
        raise TransferError("a local block is named twice in one read")


def _cut(remote: ByteRange, local: ByteRange, max_bytes: int) -> Iterable[Piece]:
    for start in range(0, remote.length, max_bytes):
        length = min(max_bytes, remote.length - start)
        yield ByteRange(remote.offset + start, length), ByteRange(local.offset + start, length)
