"""Makes what sequences have computed findable: whole blocks as they fill, the last part at the end.

Under which key is decided by the tokens, the salt, the adapter, and what all keys of this worker
have in common.
"""

from dataclasses import replace

from segue.cluster.block_hash import WORD_BYTES, KeyScope, root_key
from segue.workers.kvcache.content_index import ContentIndex
from segue.workers.kvcache.node import Node
from segue.workers.sequence import Sequence

MAX_ROOTS = 1024


class Publication:
    def __init__(self, content: ContentIndex, block_size: int, scope: KeyScope) -> None:
        self._content = content
        self._block_size = block_size
        self._piece_bytes = block_size * WORD_BYTES
        self._scope = scope
        self._roots: dict[tuple[str, str | None], bytes] = {}

    def root_key(self, sequence: Sequence) -> bytes:
        """The key from which the chains of all sequences with its salt and adapter begin."""
        key = sequence.root_key
        if key is None:
            key = sequence.root_key = self._root_key(sequence.request.cache_salt, sequence.adapter)
        return key

    def _root_key(self, salt: str, adapter: str | None) -> bytes:
        key = self._roots.get((salt, adapter))
        if key is None:
            if len(self._roots) >= MAX_ROOTS:  # bounded: salts come from clients
                self._roots.clear()
            scope = replace(self._scope, salt=salt or None, adapter=adapter)
            key = self._roots[salt, adapter] = root_key(scope)
        return key

    def publish_whole(self, sequence: Sequence) -> None:
        """Make the whole blocks among the computed tokens findable."""
        end = sequence.num_computed // self._block_size
        if sequence.num_published < end:
            sequence.last_node = self._store(sequence, end * self._piece_bytes)
            sequence.num_published = end

    def publish_end(self, sequence: Sequence) -> None:
        """Make all that is computed findable; a last block that is not whole unless its tokens
        are so already.

        Only when the sequence ends: what is published is not written to any more.
        """
        end = sequence.num_computed * WORD_BYTES
        if sequence.num_published * self._piece_bytes < end:
            self._store(sequence, end)

    def _store(self, sequence: Sequence, end: int) -> Node:
        """Blocks behind the last published one, up to `words[:end]`. If that one was forgotten
        meanwhile (it may have been another sequence's block), the sequence's own blocks become
        findable instead."""
        content, node, start = self._content, sequence.last_node, sequence.num_published
        if node is None or node.parent is None:
            node = content.tree.grow_root(self.root_key(sequence))
            start = 0
        return content.store(node, sequence.words()[:end], sequence.block_ids, start)
