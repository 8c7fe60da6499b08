"""How KV heads are spread over the ranks of a worker, and which rank reads which heads where.

Heads are split evenly in their order. Where there are more ranks than heads (grouped-query
attention), each head is held by a run of neighbouring ranks:

    8 heads, 4 ranks   [0 1] [2 3] [4 5] [6 7]
    2 heads, 4 ranks   [0] [0] [1] [1]

All ranks of a worker number their blocks alike, and each registers a region of its own.
"""

from dataclasses import dataclass, replace

from segue.cluster.errors import ConfigurationError, TransferError
from segue.kvtransfer.layout import KVLayout, incompatibility


@dataclass(frozen=True, slots=True)
class ShardedLayout:
    """`whole`: the layout as if one rank held all heads. What peers compare is that alone."""

    whole: KVLayout
    num_ranks: int = 1

    def __post_init__(self) -> None:
        heads, ranks = self.whole.num_kv_heads, self.num_ranks
        if ranks < 1:
            raise ConfigurationError(
                f"tensor_parallel_size must be at least 1, not {ranks}",
                param="tensor_parallel_size",
            )
        if heads % ranks and ranks % heads:
            raise ConfigurationError(
                f"num_kv_heads {heads} cannot be spread over tensor_parallel_size {ranks}: "
                "neither is a multiple of the other",
                param="tensor_parallel_size",
            )

    @property
    def rank_layout(self) -> KVLayout:
        """The memory of each rank."""
        return replace(self.whole, num_kv_heads=max(1, self.whole.num_kv_heads // self.num_ranks))

    def heads_of(self, rank: int) -> range:
        """The model's heads that `rank` holds, in the order in which it holds them."""
        if not 0 <= rank < self.num_ranks:
            raise TransferError(f"rank {rank} is outside [0, {self.num_ranks})")
        heads, count = self.whole.num_kv_heads, self.rank_layout.num_kv_heads
        first = rank * heads // self.num_ranks
        return range(first, first + count)

    def holders_of(self, head: int) -> range:
        """The ranks that hold a copy of one of the model's heads."""
        heads = self.whole.num_kv_heads
        if not 0 <= head < heads:
            raise TransferError(f"head {head} is outside [0, {heads})")
        first = head * self.num_ranks // heads
        return range(first, first + max(1, self.num_ranks // heads))

    def fingerprint(self) -> dict[str, str]:
        """What peers must have in common; the number of ranks is not a part of it."""
        return self.whole.fingerprint()


@dataclass(frozen=True, slots=True)
class HeadMove:
    """`num_heads` neighbouring heads, counted within the memory of each of the two ranks."""

    source_rank: int
    source_head: int
    target_head: int
    num_heads: int


def head_moves(
    source: ShardedLayout, target: ShardedLayout, target_rank: int
) -> tuple[HeadMove, ...]:
    """Where one rank of `target` finds each of its heads, every one exactly once.

    Copies of a head share its readers evenly. Raises TransferError, naming the field, if the two
    differ in anything but ranks and blocks.
    """
    difference = incompatibility(target.fingerprint(), source.fingerprint())
    if difference is not None:
        raise TransferError(f"cannot reshard: {difference}")
    moves: list[HeadMove] = []
    for target_head, head in enumerate(target.heads_of(target_rank)):
        rank = _copy_for(source.holders_of(head), target.holders_of(head), target_rank)
        source_head = head - source.heads_of(rank).start
        last = moves[-1] if moves else None
        if last is not None and (rank, source_head) == (
            last.source_rank,
            last.source_head + last.num_heads,
        ):
            moves[-1] = replace(last, num_heads=last.num_heads + 1)
        else:
            moves.append(HeadMove(rank, source_head, target_head, 1))
    return tuple(moves)


def _copy_for(copies: range, readers: range, reader: int) -> int:
    return copies[(reader - readers.start) * len(copies) // len(readers)]
