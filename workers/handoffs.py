"""Which blocks of each handoff its reader knows of, and which may be told next; leases those.

Lives in the engine thread. What a step computes last of a prompt is told when the step is done, or
in parts: group after group of its layers while it is being computed, under one lease.
"""

from collections.abc import Callable, Iterable, Sequence

from segue.cluster.identity import AttemptId
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.plan import Scheduled
from segue.workers.sequence import Sequence as TokenSequence
from segue.workers.step_outcome import ChunkReady


class Handoffs:
    """`checksums` gives one checksum a block, or none at all."""

    def __init__(
        self, cache: KVCache, checksums: Callable[[Sequence[int]], tuple[int, ...]]
    ) -> None:
        self._cache = cache
        self._checksums = checksums
        self._told: dict[AttemptId, int] = {}  # blocks from the first one on, all their layers
        self._layers: dict[AttemptId, int] = {}  # told of those behind them; of one step only

    def begin(self, attempt: AttemptId, num_known_blocks: int) -> None:
        """The first blocks need not be told of: the reader has them."""
        self._told[attempt] = num_known_blocks

    def forget(self, sequences: Iterable[TokenSequence]) -> None:
        if not self._told:
            return
        for sequence in sequences:
            self._told.pop(sequence.attempt, None)
            self._layers.pop(sequence.attempt, None)

    def part(self, item: Scheduled, stop_layer: int) -> ChunkReady | None:
        """The step that ends a context has computed its layers before `stop_layer` for good."""
        sequence = item.sequence
        first, blocks = self._untold(sequence, self._cache.blocks_for(item.end))
        if not blocks:
            return None
        first_layer = self._layers.get(sequence.attempt, 0)
        if not first_layer:
            self._cache.pool.lease(blocks)
        self._layers[sequence.attempt] = stop_layer
        return ChunkReady(
            sequence, first, blocks, (), None, first_layer, stop_layer, leases=not first_layer
        )

    def chunk(
        self, item: Scheduled, first_token: int | None, *, repeated: bool = False
    ) -> ChunkReady | None:
        """The step is done. `repeated`: it began once more after it had told parts, which hold
        no longer what the blocks hold now."""
        sequence, is_last = item.sequence, first_token is not None
        end = item.end
        done = self._cache.blocks_for(end) if is_last else end // self._cache.block_size
        first, blocks = self._untold(sequence, done)
        if not (blocks or is_last):
            return None
        sums = self._checksums(blocks)
        num_layers = self._layers.pop(sequence.attempt, 0)
        if not num_layers:
            self._cache.pool.lease(blocks)  # from here on nothing raises before it is told
        self._told[sequence.attempt] = max(first, done)
        first_layer = 0 if repeated else num_layers
        return ChunkReady(
            sequence, first, blocks, sums, first_token, first_layer, leases=not num_layers
        )

    def _untold(self, sequence: TokenSequence, done: int) -> tuple[int, tuple[int, ...]]:
        first = self._told[sequence.attempt]
        return first, tuple(sequence.block_ids[first:done])
