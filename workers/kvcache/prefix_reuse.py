"""Begins sequences with what of their tokens is in the cache, and says how long it is kept."""

from segue.cluster.block_hash import WORD_BYTES
from segue.cluster.retention import DEFAULT_PRIORITY, NOTHING_SPECIAL
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.content_index import ContentIndex
from segue.workers.kvcache.node import Node
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.kvcache.prefix_match import NO_MATCH, PrefixMatch, match_prefix
from segue.workers.kvcache.publication import Publication
from segue.workers.sequence import Sequence

BlockPlace = tuple[Node | bytes, bytes]  # the node, or the root's key, that it follows; its tokens


class PrefixReuse:
    def __init__(
        self,
        pool: BlockPool,
        content: ContentIndex,
        publication: Publication,
        policy: ReusePolicy,
        block_size: int,
    ) -> None:
        self._pool = pool
        self._content = content
        self._publication = publication
        self._policy = policy
        self._block_size = block_size

    def match(self, sequence: Sequence, *, whole_blocks: bool = False) -> PrefixMatch:
        """Find reusable leading tokens, in whole blocks only if so wanted. Changes nothing."""
        if not self._policy.enabled:
            return NO_MATCH
        tree, words = self._content.tree, sequence.words()
        root = tree.root(self._publication.root_key(sequence))
        if root is None or not root.leads_to(words):
            return NO_MATCH
        return match_prefix(
            root,
            tree,
            words,
            self._block_size,
            self._pool.is_idle,
            self._part_allowed if self._policy.partial and not whole_blocks else None,
        )

    def unmatched(self, sequence: Sequence, match: PrefixMatch) -> BlockPlace | None:
        """Where the first whole block belongs that could be shared and that the cache does not
        hold, if there is one. Equal for equal blocks, until something is computed or forgotten."""
        size, nodes = self._block_size * WORD_BYTES, match.nodes
        start, words = len(nodes) * size, sequence.words()
        if start + size >= len(words) or not self._policy.enabled:
            return None
        before = nodes[-1] if nodes else self._publication.root_key(sequence)
        return before, words[start : start + size]

    def take(self, sequence: Sequence, match: PrefixMatch, count: int, landing: bool) -> None:
        """Give the sequence `count` blocks, the matched ones first."""
        sequence.block_ids = self._take_blocks(match, count, landing)
        self._retain_matched(sequence, match)
        if sequence.retention is not NOTHING_SPECIAL:
            self.retain_fresh(sequence, match.full_blocks + (match.part is not None))

    def _retain_matched(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Reused content takes a priority only if one is given, but always the duration."""
        retention, pool, content = sequence.retention, self._pool, self._content
        for index, node in enumerate(match.nodes):
            if retention is not NOTHING_SPECIAL:
                wanted = retention.of_block(index * self._block_size, sequence.num_prompt)
                content.retain(node, wanted.priority, wanted.duration)
            elif node.block_id is not None and pool.duration(node.block_id) is not None:
                content.retain(node, None, None)

    def retain_fresh(self, sequence: Sequence, first: int) -> None:
        """For blocks of one's own from block `first` on; they have the default now."""
        for index in range(first, len(sequence.block_ids)):
            wanted = sequence.retention.of_block(index * self._block_size, sequence.num_prompt)
            priority = DEFAULT_PRIORITY if wanted.priority is None else wanted.priority
            self._pool.retain(sequence.block_ids[index], priority, wanted.duration)

    def _part_allowed(self, node: Node) -> bool:
        is_idle_leaf = self._content.is_idle(node) and node.is_leaf
        return self._policy.copy_on_partial or is_idle_leaf

    def _take_blocks(self, match: PrefixMatch, count: int, landing: bool) -> list[int]:
        """What is matched is claimed before anything is allocated, so that no allocation can evict
        it.

        A part is copied, or its idle block is taken over: if all of it continues here, so that
        nothing is lost, or if a copy is not wanted or would need one block more than there is.
        """
        content, part = self._content, match.part
        own: list[int] = []
        crowded = self._pool.num_available <= count - match.live_full_blocks
        for node in match.nodes:
            content.claim(node)
        if (
            part is not None
            and content.is_idle(part)
            and (crowded or not self._policy.copy_on_partial or match.uses_all_of_part)
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
