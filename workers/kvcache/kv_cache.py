"""Gives sequences their blocks: prefix reuse, admission guarantee, growth, publication.

Holds no tensor. Block arithmetic follows GUARANTEED_NO_EVICT: a sequence is admitted only if its
prompt and its whole answer fit beside what is promised to those already admitted, so an admitted
sequence never waits for a block. Idle cached blocks are available, hence give no credit.
"""

from dataclasses import dataclass, field

from segue.cluster.block_hash import KeyScope, child_key, root_key
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.kvcache.block_pool import BlockPool, BlockState
from segue.workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the cache holds of a sequence's leading tokens; at least one token is left to compute.

    `live_full_blocks` of the whole ones are in use, so sharing them takes nothing of what is
    available. `first_unmatched_key` names the first whole context block that is not held, if any.
    """

    block_ids: tuple[int, ...]
    last_key: bytes
    num_tokens: int = 0  # a partly matching last block included
    full_blocks: int = 0
    live_full_blocks: int = 0
    first_unmatched_key: bytes | None = None


@dataclass(slots=True)
class ReuseStatistics:
    queried_tokens: int = 0
    reused_tokens: int = 0


@dataclass(slots=True)
class KVCache:
    pool: BlockPool
    block_size: int
    scope: KeyScope
    reuse: bool = True
    statistics: ReuseStatistics = field(default_factory=ReuseStatistics)
    _promised: int = 0
    _roots: dict[str, bytes] = field(default_factory=dict)

    # -- arithmetic --------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def final_tokens(self, sequence: Sequence) -> int:
        """Tokens whose KV this worker will ever hold for the sequence.

        The last token of an answer never gets KV; a prefill worker keeps the context only.
        """
        if sequence.hands_off:
            return sequence.num_context
        return max(sequence.num_context, sequence.request.max_total_tokens - 1)

    def can_ever_fit(self, sequence: Sequence) -> bool:
        return self.blocks_for(self.final_tokens(sequence)) <= self.pool.num_blocks

    @property
    def promised_blocks(self) -> int:
        return self._promised

    def blocks_needed(self, sequence: Sequence, match: PrefixMatch) -> int:
        """Blocks that admission takes out of what is available, now or later."""
        return self.blocks_for(self.final_tokens(sequence)) - match.live_full_blocks

    # -- a sequence's life -------------------------------------------------------------------

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Find reusable leading blocks; at least one token is left to compute. Changes nothing."""
        key = self._root(sequence.request.cache_salt)
        found: list[int] = []
        unmatched: bytes | None = None
        most = (len(sequence.tokens) - 1) // self.block_size if self.reuse else 0
        for index in range(most):
            start = index * self.block_size
            next_key = child_key(key, sequence.tokens[start : start + self.block_size])
            block_id = self.pool.find(next_key)
            if block_id is None or self.pool.state(block_id) is BlockState.LANDING:
                unmatched = next_key
                break
            found.append(block_id)
            key = next_key
        live = sum(not self.pool.is_idle(block_id) for block_id in found)
        return PrefixMatch(
            tuple(found), key, len(found) * self.block_size, len(found), live, unmatched
        )

    def admit(
        self, sequence: Sequence, *, landing: bool = False, total_tokens: int | None = None
    ) -> bool:
        """Give the sequence blocks for all its tokens and promise the rest, or change nothing.

        With `landing`, blocks that are not reused wait for their content from a peer. The promise
        covers `total_tokens`; None: the whole answer; 0: nothing beyond the tokens known now.
        """
        match = self.match(sequence)
        in_context = self.blocks_for(len(sequence.tokens))
        promised = self.final_tokens(sequence) if total_tokens is None else total_tokens
        total = max(in_context, self.blocks_for(promised))
        if total - match.live_full_blocks > self.pool.num_available - self._promised:
            return False
        for block_id in match.block_ids:
            self.pool.share(block_id)
        fresh = self.pool.allocate(in_context - len(match.block_ids), landing=landing)
        sequence.block_ids = [*match.block_ids, *fresh]
        sequence.num_published = len(match.block_ids)
        sequence.last_key = match.last_key
        sequence.num_cached = sequence.num_computed = len(match.block_ids) * self.block_size
        sequence.promised_blocks = total - in_context
        self._promised += sequence.promised_blocks
        self.statistics.queried_tokens += len(sequence.tokens)
        self.statistics.reused_tokens += sequence.num_cached
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Make sure that positions [0, num_tokens) have blocks."""
        missing = self.blocks_for(num_tokens) - len(sequence.block_ids)
        if missing > 0:
            sequence.block_ids.extend(self.pool.allocate(missing))
            kept = min(missing, sequence.promised_blocks)
            sequence.promised_blocks -= kept
            self._promised -= kept

    def publish(self, sequence: Sequence) -> None:
        """Make the whole blocks among the computed tokens findable."""
        if not self.reuse:
            return
        for index in range(sequence.num_published, sequence.num_computed // self.block_size):
            start = index * self.block_size
            assert sequence.last_key is not None
            tokens = sequence.tokens[start : start + self.block_size]
            sequence.last_key = child_key(sequence.last_key, tokens)
            self.pool.publish(sequence.block_ids[index], sequence.last_key)
            sequence.num_published = index + 1

    def land(self, sequence: Sequence) -> None:
        """The context's KV has arrived and was verified; make it visible in one step."""
        self.pool.land(self.landing_blocks(sequence))
        sequence.num_computed = sequence.num_context
        self.publish(sequence)

    def landing_blocks(self, sequence: Sequence) -> list[int]:
        return [b for b in sequence.block_ids if self.pool.state(b) is BlockState.LANDING]

    def free(self, sequence: Sequence) -> None:
        """Take everything back. No read into the sequence's blocks may be in flight."""
        landing = self.landing_blocks(sequence)
        self.pool.drop_landing(reversed(landing))
        gone = set(landing)
        self.pool.release(b for b in reversed(sequence.block_ids) if b not in gone)
        sequence.block_ids = []
        self._promised -= sequence.promised_blocks
        sequence.promised_blocks = 0

    def pause(self, sequence: Sequence) -> None:
        """Take everything back, so that the sequence can be admitted again with all its tokens."""
        self.free(sequence)
        sequence.num_computed = sequence.num_cached = sequence.num_published = 0
        sequence.last_key = None

    # -- for the engine, once a step ---------------------------------------------------------

    def refresh(self, now: float) -> None:
        """Tell the time: what is released from here on is released at `now`."""

    def take_copies(self) -> tuple[BlockOperation, ...]:
        """The block copies that must run, in this order, before the step's forward pass and
        before anybody is told of a block that was given out."""
        return ()

    def end_copies(self) -> None:
        """All copies that were taken have run."""

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError unless the pool balances with exactly these live sequences."""
        self.pool.check_integrity()
        assert self._promised == sum(s.promised_blocks for s in sequences) >= 0
        counts = self.pool.counts()
        held = {block_id for s in sequences for block_id in s.block_ids}
        assert len(held) == counts[BlockState.OWNED] + counts[BlockState.LANDING]

    def _root(self, salt: str) -> bytes:
        if salt not in self._roots:
            if len(self._roots) > 1024:  # bounded: salts come from clients
                self._roots.clear()
            scope = KeyScope(
                self.scope.model_revision,
                self.scope.kv_dtype,
                self.scope.block_size,
                self.scope.position_settings,
                self.scope.adapter,
                salt or None,
            )
            self._roots[salt] = root_key(scope)
        return self._roots[salt]
