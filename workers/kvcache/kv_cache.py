"""Gives sequences their blocks: prefix reuse, admission guarantee, growth, publication.

Holds no tensor. A sequence is admitted only if its tokens and what it is promised beyond them fit
beside what is promised to those already admitted, so that an admitted sequence never waits for a
block it was promised. Idle cached blocks are available, hence give no credit.
"""

from collections.abc import Iterable

from segue.cluster.block_hash import KeyScope
from segue.cluster.retention import DEFAULT_PRIORITY, Retention
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.kvcache.block_pool import BlockPool, BlockState
from segue.workers.kvcache.content_index import ContentIndex
from segue.workers.kvcache.events import EventLog, Snapshot
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.kvcache.prefix_match import PrefixMatch, match_prefix
from segue.workers.kvcache.publication import Publication
from segue.workers.kvcache.radix_tree import Node
from segue.workers.kvcache.statistics import CacheStatistics
from segue.workers.sequence import Sequence

__all__ = ["KVCache", "PrefixMatch"]

NOTHING_SPECIAL = Retention()


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
        self._limits: dict[Sequence, int] = {}  # blocks promised in all, those held included
        self._promised = 0
        self._publication = Publication(self._content, block_size, scope)

    # -- arithmetic --------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def final_tokens(self, sequence: Sequence) -> int:
        """Tokens for which there must be room before the sequence may begin.

        The last token of an answer never gets KV but is counted, as in the reference: at most one
        block too careful. A prefill worker keeps the context only.
        """
        if sequence.hands_off:
            return sequence.num_context
        return max(sequence.num_context, sequence.num_prompt + sequence.request.stop.max_tokens)

    def can_ever_fit(self, sequence: Sequence) -> bool:
        return self.blocks_for(self.final_tokens(sequence)) <= self.pool.num_blocks

    @property
    def promised_blocks(self) -> int:
        return self._promised

    def blocks_needed(self, sequence: Sequence, match: PrefixMatch) -> int:
        """Blocks that admission takes out of what is available, now or later."""
        return self.blocks_for(self.final_tokens(sequence)) - match.live_full_blocks

    # -- a sequence's life -------------------------------------------------------------------

    def match(self, sequence: Sequence, *, whole_blocks: bool = False) -> PrefixMatch:
        """Find reusable leading tokens, in whole blocks only if so wanted. Changes nothing."""
        key = self._publication.root_key(sequence.request.cache_salt)
        if not self.policy.enabled:
            return PrefixMatch(0, 0, None, key)
        return match_prefix(
            self._content.tree,
            key,
            sequence.tokens,
            self.block_size,
            self.pool.is_idle,
            self._part_allowed if self.policy.partial and not whole_blocks else None,
        )

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
        match = matched
        if match is None or match.num_tokens:
            match = self.match(sequence, whole_blocks=landing)
        limit = self._limit(sequence, total_tokens)
        if limit - match.live_full_blocks > self.pool.num_available - self._promised:
            return False
        in_context = self.blocks_for(len(sequence.tokens))
        sequence.block_ids = self._take_blocks(match, in_context, landing)
        sequence.num_published, sequence.last_key = match.full_blocks, match.last_key
        self._retain_matched(sequence, match)
        self._retain_fresh(sequence, match.full_blocks + (match.part is not None))
        self._begin(sequence, match.num_tokens, limit, match.full_blocks)
        return True

    def fork(self, source: Sequence, target: Sequence, *, total_tokens: int | None = None) -> bool:
        """Admit `target` on what is computed of `source`, whose tokens it begins with.

        Whole blocks are shared, the rest is copied. False, and nothing changed: no room.
        """
        shared = min(source.num_computed, len(target.tokens) - 1)
        same = target.tokens[:shared] == source.tokens[:shared]
        if not same or source.request.cache_salt != target.request.cache_salt:
            raise ValueError("only a sequence that begins with the same tokens is forked")
        full, part = divmod(shared, self.block_size)
        limit = self._limit(target, total_tokens)
        if limit - full > self.pool.num_available - self._promised:
            return False
        for block_id in source.block_ids[:full]:
            self.pool.share(block_id)
        fresh = self._content.allocate(self.blocks_for(len(target.tokens)) - full)
        target.block_ids = [*source.block_ids[:full], *fresh]
        if part:
            self._content.copies.copy(source.block_ids[full], fresh[0], part)
            self.statistics.copied += 1
        self._retain_fresh(target, full)
        self._begin(target, shared, limit, full)
        self.publish(target)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Make sure that positions [0, num_tokens) have blocks."""
        held = len(sequence.block_ids)
        missing = self.blocks_for(num_tokens) - held
        if missing > 0:
            sequence.block_ids.extend(self._content.allocate(missing))
            self.statistics.allocated_for_answers += missing
            self._retain_fresh(sequence, held)
            self._promise(sequence)

    def rewind(self, sequence: Sequence, num_tokens: int) -> None:
        """Positions from `num_tokens` on were not accepted; their blocks are reused first."""
        if num_tokens < sequence.num_published * self.block_size:
            raise ValueError("published blocks cannot be taken back")
        keep = self.blocks_for(num_tokens)
        self.pool.release(reversed(sequence.block_ids[keep:]), reuse_first=True)
        del sequence.block_ids[keep:]
        sequence.num_computed = min(sequence.num_computed, num_tokens)
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
            self._retain_fresh(sequence, held)
            self._promise(sequence)
        return True

    def landing_blocks(self, sequence: Sequence) -> list[int]:
        return [b for b in sequence.block_ids if self.pool.state(b) is BlockState.LANDING]

    def free(self, sequence: Sequence) -> None:
        """Publish what is computed, then take everything back; nothing if it holds nothing.

        No read into the sequence's blocks may be in flight.
        """
        if not sequence.block_ids:
            return
        self.publish(sequence)
        if self.policy.enabled and self.policy.partial:
            self._publication.publish_part(sequence)
        if self.pool.num_landing and (landing := self.landing_blocks(sequence)):
            self.pool.drop_landing(reversed(landing))
            gone = set(landing)
            self.pool.release(b for b in reversed(sequence.block_ids) if b not in gone)
        else:
            self.pool.release(reversed(sequence.block_ids))
        sequence.block_ids = []
        self._limits.pop(sequence)
        self._promise(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Free the sequence so that it can be admitted again with all its tokens."""
        self.free(sequence)
        sequence.num_computed = sequence.num_cached = sequence.num_published = 0
        sequence.last_key = None

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
        assert self._limits.keys() == {s for s in sequences if s.block_ids}
        counts = self.pool.counts()
        held = {block_id for s in sequences for block_id in s.block_ids}
        assert len(held) == counts[BlockState.OWNED] + counts[BlockState.LANDING]

    # -- admission ---------------------------------------------------------------------------

    def _limit(self, sequence: Sequence, total_tokens: int | None) -> int:
        total = self.final_tokens(sequence) if total_tokens is None else total_tokens
        return self.blocks_for(max(total, len(sequence.tokens)))

    def _part_allowed(self, node: Node) -> bool:
        is_idle_leaf = self._content.is_idle(node) and not node.children
        return self.policy.copy_on_partial or is_idle_leaf

    def _take_blocks(self, match: PrefixMatch, count: int, landing: bool) -> list[int]:
        """Blocks for a context of `count` blocks. What is matched is claimed before anything is
        allocated, so that no allocation can evict it.

        A part is copied, or its idle block is taken over: if all of it continues here, so that
        nothing is lost, or if a copy is not wanted or would need one block more than there is.
        """
        content, part = self._content, match.part
        own: list[int] = []
        crowded = self.pool.num_available <= count - match.live_full_blocks
        for node in match.nodes:
            content.claim(node)
        if (
            part is not None
            and content.is_idle(part)
            and (crowded or not self.policy.copy_on_partial or match.uses_all_of_part)
        ):
            own, part = [content.take_over(part)], None
        elif part is not None:
            content.claim(part)
        on_host = [node for node in match.nodes if node.block_id is None]
        for node, block_id in zip(on_host, content.allocate(len(on_host)), strict=True):
            content.onboard(node, block_id)
        shared = [node.block_id for node in match.nodes if node.block_id is not None]
        own += content.allocate(count - len(shared) - len(own), landing=landing)
        if part is not None:
            content.copy_part(part, own[0], match.num_part_tokens)
        return shared + own

    def _begin(self, sequence: Sequence, num_tokens: int, limit: int, full: int) -> None:
        sequence.num_cached = sequence.num_computed = num_tokens
        self._limits[sequence] = limit
        self._promise(sequence)
        part = int(num_tokens > full * self.block_size)
        counts = self.statistics
        counts.queried_tokens += len(sequence.tokens)
        counts.reused_tokens += num_tokens
        counts.reused_full += full
        counts.reused_partial += part
        counts.missed += self.blocks_for(len(sequence.tokens)) - full - part

    def _promise(self, sequence: Sequence) -> None:
        """Make the promise what is left of the sequence's limit."""
        before = sequence.promised_blocks
        left = self._limits.get(sequence, 0) - len(sequence.block_ids)
        sequence.promised_blocks = max(0, left)
        self._promised += sequence.promised_blocks - before

    # -- retention ---------------------------------------------------------------------------

    def _retain_matched(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Reused content takes a priority only if one is given, but always the duration."""
        prompt = sequence.request.num_prompt_tokens
        for index, node in enumerate(match.nodes):
            wanted = sequence.retention.of_block(index * self.block_size, prompt)
            self._content.retain(node, wanted.priority, wanted.duration)

    def _retain_fresh(self, sequence: Sequence, first: int) -> None:
        """For blocks of one's own from block `first` on; they have the default now."""
        if sequence.retention == NOTHING_SPECIAL:
            return
        prompt = sequence.request.num_prompt_tokens
        for index in range(first, len(sequence.block_ids)):
            wanted = sequence.retention.of_block(index * self.block_size, prompt)
            priority = DEFAULT_PRIORITY if wanted.priority is None else wanted.priority
            self.pool.retain(sequence.block_ids[index], priority, wanted.duration)
