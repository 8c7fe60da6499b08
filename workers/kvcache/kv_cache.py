"""Gives sequences their blocks: prefix reuse, admission guarantee, growth, publication.

Holds no tensor. A sequence is admitted only if its tokens and what it is promised beyond them fit
beside what is promised to those already admitted, so that an admitted sequence never waits for a
block it was promised. Idle cached blocks are available, hence give no credit.
"""

from collections.abc import Iterable

from segue.cluster.block_hash import KeyScope
from segue.cluster.retention import NOTHING_SPECIAL
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.kvcache.block_pool import BlockPool, BlockState
from segue.workers.kvcache.content_index import ContentIndex
from segue.workers.kvcache.events import EventLog, Snapshot
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.kvcache.prefix_match import PrefixMatch
from segue.workers.kvcache.prefix_reuse import PrefixReuse
from segue.workers.kvcache.publication import Publication
from segue.workers.kvcache.statistics import CacheStatistics
from segue.workers.sequence import Sequence

__all__ = ["KVCache", "PrefixMatch"]


# The parameters of `KVCache.admit`: sequence, total_tokens, landing, matched.
Admission = tuple[Sequence, int, bool, PrefixMatch | None]


class KVCache:
    """One thread. `refresh` once a step tells it the time; the copies it orders are taken by
    `take_copies` once a step, before anything is computed or told."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        scope: KeyScope,
        reuse: bool | ReusePolicy = True,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.policy = ReusePolicy(enabled=reuse) if isinstance(reuse, bool) else reuse
        self.statistics = CacheStatistics()
        self._content = ContentIndex(pool, block_size, self.policy, self.statistics)
        self._promised = 0
        self._publication = Publication(self._content, block_size, scope)
        self._reuse = PrefixReuse(pool, self._content, self._publication, self.policy, block_size)
        self.match = self._reuse.match
        self.unmatched = self._reuse.unmatched

    # -- arithmetic --------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def final_tokens(self, sequence: Sequence) -> int:
        """Tokens for which there must be room before the sequence may begin.

        The last token of an answer never gets KV but is counted, as in the reference: at most one
        block too careful. A prefill worker keeps the context only.
        """
        return sequence.num_context if sequence.decode_peer is not None else sequence.num_final

    def can_ever_fit(self, sequence: Sequence) -> bool:
        return -(-self.final_tokens(sequence) // self.block_size) <= self.pool.num_blocks

    @property
    def promised_blocks(self) -> int:
        return self._promised

    # -- a sequence's life -------------------------------------------------------------------

    def admit(
        self,
        sequence: Sequence,
        *,
        landing: bool = False,
        total_tokens: int | None = None,
        matched: PrefixMatch | None = None,
    ) -> bool:
        """Give the sequence blocks for all its tokens and promise the rest, or change nothing.

        `matched` was found a moment ago. What it found may have gone since, so that is looked up
        again; that nothing was found is good enough.

        With `landing`, blocks that are not reused wait for their content from a peer. The promise
        covers `total_tokens`; None: the whole answer; 0: nothing beyond the tokens known now.
        """
        total = self.final_tokens(sequence) if total_tokens is None else total_tokens
        return bool(self.admit_all([(sequence, total, landing, matched)]))

    def admit_all(self, admissions: Iterable[Admission]) -> int:
        """Admit them in order up to the first one that does not fit; returns how many."""
        owed: list[tuple[Sequence, int]] = []  # those that find nothing get blocks all at once
        size, count, queried = self.block_size, 0, 0
        available = self.pool.num_available - self._promised
        for sequence, total, landing, match in admissions:
            if landing or match is None or match.num_tokens:
                if not self._admit_matched(sequence, total, landing):
                    break
                available = self.pool.num_available - self._promised
            else:
                num_tokens = len(sequence.tokens)
                limit = -(-(total if total > num_tokens else num_tokens) // size)
                if limit > available:
                    break
                sequence.num_published, sequence.last_node = 0, None
                sequence.num_cached = sequence.num_computed = 0
                sequence.max_blocks = sequence.promised_blocks = limit
                self._promised += limit
                available -= limit
                owed.append((sequence, -(-num_tokens // size)))
                queried += num_tokens
            count += 1
        self.statistics.missed += self._append_blocks(owed)
        self.statistics.queried_tokens += queried
        return count

    def _admit_matched(self, sequence: Sequence, total: int, landing: bool) -> bool:
        """With what is in the cache now, which may be nothing."""
        match = self.match(sequence, whole_blocks=landing)
        limit = self.blocks_for(max(total, len(sequence.tokens)))
        if limit - match.live_full_blocks > self.pool.num_available - self._promised:
            return False
        nodes = match.nodes
        sequence.num_published, sequence.last_node = len(nodes), nodes[-1] if nodes else None
        self._reuse.take(sequence, match, self.blocks_for(len(sequence.tokens)), landing)
        self._begin(sequence, match.num_tokens, limit, len(nodes))
        return True

    def fork(self, source: Sequence, target: Sequence, *, total_tokens: int | None = None) -> bool:
        """Admit `target` on what is computed of `source`, whose tokens it begins with.

        Whole blocks are shared, the rest is copied. False, and nothing changed: no room.
        """
        shared = min(source.num_computed, len(target.tokens) - 1)
        same = target.tokens[:shared] == source.tokens[:shared]
        if not same or self._publication.root_key(source) != self._publication.root_key(target):
            raise ValueError("only a sequence that begins with the same tokens is forked")
        full, part = divmod(shared, self.block_size)
        total = self.final_tokens(target) if total_tokens is None else total_tokens
        limit = self.blocks_for(max(total, len(target.tokens)))
        if limit - full > self.pool.num_available - self._promised:
            return False
        for block_id in source.block_ids[:full]:
            self.pool.share(block_id)
        fresh = self._content.allocate(self.blocks_for(len(target.tokens)) - full)
        target.block_ids = [*source.block_ids[:full], *fresh]
        if part:
            self._content.copies.copy(source.block_ids[full], fresh[0], part)
            self.statistics.copied += 1
        if target.retention is not NOTHING_SPECIAL:
            self._reuse.retain_fresh(target, full)
        self._begin(target, shared, limit, full)
        self.publish(target)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Make sure that positions [0, num_tokens) have blocks."""
        missing = self.blocks_for(num_tokens) - len(sequence.block_ids)
        self.statistics.allocated_for_answers += self._append_blocks([(sequence, missing)])

    def grow(self, sequences: Iterable[Sequence]) -> None:
        """Give each generating sequence blocks for its next token and the drafts behind it."""
        size = self.block_size
        missing = [
            (s, (s.num_computed + s.num_drafts) // size + 1 - len(s.block_ids)) for s in sequences
        ]
        self.statistics.allocated_for_answers += self._append_blocks(missing)

    def _append_blocks(self, missing: list[tuple[Sequence, int]]) -> int:
        """Returns how many in all."""
        total = sum([count for _, count in missing if count > 0])
        if not total:
            return 0
        fresh = self._content.allocate(total)
        change = end = 0
        for sequence, count in missing:
            if count <= 0:
                continue
            start, end = end, end + count
            block_ids = sequence.block_ids
            block_ids += fresh[start:end]
            left = sequence.max_blocks - len(block_ids)
            if left < 0:
                left = 0
            change += left - sequence.promised_blocks
            sequence.promised_blocks = left
            if sequence.retention is not NOTHING_SPECIAL:
                self._reuse.retain_fresh(sequence, len(block_ids) - count)
        self._promised += change
        return total

    def rewind(self, sequence: Sequence, num_tokens: int) -> None:
        """Positions from `num_tokens` on were not accepted; their blocks are reused first."""
        if num_tokens < sequence.num_published * self.block_size:
            raise ValueError("published blocks cannot be taken back")
        keep = self.blocks_for(num_tokens)
        self.pool.release(reversed(sequence.block_ids[keep:]), reuse_first=True)
        del sequence.block_ids[keep:]
        sequence.rewind(num_tokens)
        self._promise(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Make the whole blocks among the computed tokens findable."""
        if self.policy.enabled:
            self._publication.publish_whole(sequence)

    def land(self, sequence: Sequence) -> None:
        """The context's KV has arrived and was verified; make it visible in one step."""
        self.pool.land(self.landing_blocks(sequence))
        sequence.num_computed = len(sequence.tokens)
        self.publish(sequence)

    def extend_landing(self, sequence: Sequence, num_blocks: int) -> bool:
        """More KV is on its way than the sequence was admitted for. False: there is no room."""
        held = len(sequence.block_ids)
        missing = num_blocks - held
        if missing - sequence.promised_blocks > self.pool.num_available - self._promised:
            return False
        if missing > 0:
            sequence.block_ids.extend(self._content.allocate(missing, landing=True))
            self._reuse.retain_fresh(sequence, held)
            self._promise(sequence)
        return True

    def landing_blocks(self, sequence: Sequence) -> list[int]:
        return [b for b in sequence.block_ids if self.pool.state(b) is BlockState.LANDING]

    def free(self, *sequences: Sequence) -> None:
        """Publish what is computed, then take everything back, of those that hold something.

        No read into the sequences' blocks may be in flight.
        """
        released: list[int] = []
        policy, publication, any_landing = self.policy, self._publication, self.pool.num_landing
        publish = publication.publish_end if policy.partial else publication.publish_whole
        for sequence in sequences:
            block_ids = sequence.block_ids
            if not block_ids:
                continue
            if policy.enabled:
                publish(sequence)
            if any_landing and (landing := self.landing_blocks(sequence)):
                self.pool.drop_landing(reversed(landing))
                gone = set(landing)
                block_ids = [b for b in block_ids if b not in gone]
            block_ids.reverse()
            released += block_ids
            sequence.block_ids = []
            sequence.max_blocks = 0
            self._promised -= sequence.promised_blocks
            sequence.promised_blocks = 0
        self.pool.release(released)

    def pause(self, sequence: Sequence) -> None:
        """Free the sequence so that it can be admitted again with all its tokens."""
        self.free(sequence)
        sequence.num_computed = sequence.num_cached = sequence.num_published = 0
        sequence.last_node = None
        sequence.lands = False

    # -- for the engine, once a step ---------------------------------------------------------

    def refresh(self, now: float) -> None:
        """Tell the time: what is released from here on is released at `now`."""
        self._content.expire(now)

    def take_copies(self) -> tuple[BlockOperation, ...]:
        """The block copies that must run now, in this order: before the step's forward pass and
        before anybody is told of a block that was given out. Then comes `end_copies`."""
        return self._content.copies.take()

    def end_copies(self) -> None:
        """All copies that were taken have run."""
        self._content.copies.end()

    def abandon_copies(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Copies failed: nothing cached is trusted any more. Returns those of `sequences` that
        hold a block of unknown content; all that is left to do with them is to free them."""
        unknown = self._content.copies.abandon()
        self.drop_content()
        spoilt = [s for s in sequences if not unknown.isdisjoint(s.block_ids)]
        for sequence in spoilt:
            sequence.num_computed = sequence.num_published = 0
        return spoilt

    def drop_content(self) -> None:
        """Forget all that is findable, and begin a new generation of the pool."""
        self._content.forget_all()
        self.pool.generation += 1

    # -- for others --------------------------------------------------------------------------

    @property
    def events(self) -> EventLog:
        return self._content.events

    def snapshot(self) -> Snapshot:
        return self._content.snapshot()

    @property
    def offloaded_blocks(self) -> int:
        return self._content.host.num_used

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError unless the pool balances with exactly these live sequences."""
        self.pool.check_integrity()
        self._content.check_integrity()
        assert self._promised == sum(s.promised_blocks for s in sequences) >= 0
        assert all(bool(s.max_blocks) == bool(s.block_ids) for s in sequences)
        counts = self.pool.counts()
        held = {block_id for s in sequences for block_id in s.block_ids}
        assert len(held) == counts[BlockState.OWNED] + counts[BlockState.LANDING]

    # -- admission ---------------------------------------------------------------------------

    def _begin(self, sequence: Sequence, num_tokens: int, limit: int, full: int) -> None:
        sequence.num_cached = sequence.num_computed = num_tokens
        sequence.max_blocks = limit
        left = sequence.promised_blocks = limit - len(sequence.block_ids)
        self._promised += left
        counts = self.statistics
        queried = len(sequence.tokens)
        counts.queried_tokens += queried
        counts.missed += -(-queried // self.block_size)
        if num_tokens:
            part = int(num_tokens > full * self.block_size)
            counts.reused_tokens += num_tokens
            counts.reused_full += full
            counts.reused_partial += part
            counts.missed -= full + part

    def _promise(self, sequence: Sequence) -> None:
        """Make the promise what is left of the sequence's limit."""
        left = sequence.max_blocks - len(sequence.block_ids)
        if left < 0:
            left = 0
        self._promised += left - sequence.promised_blocks
        sequence.promised_blocks = left
