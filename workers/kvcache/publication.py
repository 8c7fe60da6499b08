"""Makes what sequences have computed findable: whole blocks as they fill, the last part at the end.

Under which key is decided by the tokens, the salt and what all keys of this worker have in common.
"""

from dataclasses import replace

from segue.cluster.block_hash import WORD_BYTES, KeyScope, root_key
from segue.workers.kvcache.content_index import ContentIndex
from segue.workers.kvcache.node import Node
from segue.workers.sequence import Sequence

MAX_SALTS = 1024


class Publication:
    def __init__(self, content: ContentIndex, block_size: int, scope: KeyScope) -> None:
        self._content = content
        self._block_size = block_size
        self._piece_bytes = block_size * WORD_BYTES
        self._scope = scope
        self._roots: dict[str, bytes] = {}

    def root_key(self, salt: str) -> bytes:
        """The key from which the chains of all sequences with this salt begin."""
        key = self._roots.get(salt)
        if key is None:
            if len(self._roots) >= MAX_SALTS:  # bounded: salts come from clients
                self._roots.clear()
            key = self._roots[salt] = root_key(replace(self._scope, salt=salt or None))
        return key

    def publish_whole(self, sequence: Sequence) -> None:
        """Make the whole blocks among the computed tokens findable."""
        start, end = sequence.num_published, sequence.num_computed // self._block_size
        if start < end:
            parent = self._last_published(sequence)
            pieces = self._pieces(sequence, start, end)
            sequence.num_published, sequence.last_node = end, self._content.store(parent, pieces)

    def publish_end(self, sequence: Sequence, with_part: bool) -> None:
        """Make all that is computed findable; a last block that is not whole unless its tokens
        are so already.

        Only when the sequence ends: what is published is not written to any more.
        """
        start, computed = sequence.num_published, sequence.num_computed
        end = computed // self._block_size
        first = end * self._piece_bytes
        part = sequence.words[first : computed * WORD_BYTES] if with_part else b""
        if start == end and not part:
            return
        parent = self._last_published(sequence)
        if start < end:
            parent = self._content.store(parent, self._pieces(sequence, start, end))
            sequence.num_published, sequence.last_node = end, parent
        if part:
            if not parent.is_leaf:
                known = self._content.tree.best_partial(parent, part, _any)
                if known is not None and known[1] * WORD_BYTES == len(part):
                    return
            self._content.store(parent, ((part, sequence.block_ids[end]),))

    def _last_published(self, sequence: Sequence) -> Node:
        """The node of the last published block. If that was forgotten meanwhile (it may have been
        another sequence's block), the sequence's own blocks become findable instead."""
        tree, node = self._content.tree, sequence.last_node
        if node is not None and node.parent is not None:
            return node
        root = tree.grow_root(self.root_key(sequence.request.cache_salt))
        if not sequence.num_published:
            return root
        return self._content.store(root, self._pieces(sequence, 0, sequence.num_published))

    def _pieces(self, sequence: Sequence, start: int, end: int) -> list[tuple[bytes, int]]:
        words, size, block_ids = sequence.words, self._piece_bytes, sequence.block_ids
        if end == start + 1:
            return [(words[start * size : end * size], block_ids[start])]
        return [(words[i * size : (i + 1) * size], block_ids[i]) for i in range(start, end)]


def _any(node: Node) -> bool:
    return True
