"""Makes what sequences have computed findable: whole blocks as they fill, the last part at the end.

Under which key is decided by the tokens, the salt and what all keys of this worker have in common.
"""

from dataclasses import replace

from segue.cluster.block_hash import KeyScope, root_key, token_words
from segue.workers.kvcache.content_index import ContentIndex
from segue.workers.kvcache.radix_tree import Node
from segue.workers.sequence import Sequence

MAX_SALTS = 1024


class Publication:
    def __init__(self, content: ContentIndex, block_size: int, scope: KeyScope) -> None:
        self._content = content
        self._block_size = block_size
        self._scope = scope
        self._roots: dict[str, bytes] = {}

    def root_key(self, salt: str) -> bytes:
        """The key from which the chains of all sequences with this salt begin."""
        if salt not in self._roots:
            if len(self._roots) >= MAX_SALTS:  # bounded: salts come from clients
                self._roots.clear()
            self._roots[salt] = root_key(replace(self._scope, salt=salt or None))
        return self._roots[salt]

    def publish_whole(self, sequence: Sequence) -> None:
        """Make the whole blocks among the computed tokens findable."""
        start, end = sequence.num_published, sequence.num_computed // self._block_size
        if start < end:
            parent = self._last_published(sequence)
            node = self._content.store(parent, self._pieces(sequence, start, end))
            sequence.num_published, sequence.last_key = end, node.key

    def publish_part(self, sequence: Sequence) -> None:
        """Make a last block that is not whole findable, unless its tokens are so already.

        Only when the sequence ends: what is published is not written to any more.
        """
        start, rest = divmod(sequence.num_computed, self._block_size)
        if not rest:
            return
        parent = self._last_published(sequence)
        piece = token_words(sequence.tokens[start * self._block_size : sequence.num_computed])
        known = self._content.tree.best_partial(parent, piece, lambda node: True)
        if known is None or known[1] < rest:
            self._content.store(parent, [(piece, sequence.block_ids[start])])

    def _last_published(self, sequence: Sequence) -> Node:
        """The node of the last published block. If that was forgotten meanwhile (it may have been
        another sequence's block), the sequence's own blocks become findable instead."""
        tree = self._content.tree
        if sequence.num_published and sequence.last_key is not None:
            node = tree.find(sequence.last_key)
            if node is not None:
                return node
        root = tree.grow_root(self.root_key(sequence.request.cache_salt))
        if not sequence.num_published:
            return root
        return self._content.store(root, self._pieces(sequence, 0, sequence.num_published))

    def _pieces(self, sequence: Sequence, start: int, end: int) -> list[tuple[bytes, int]]:
        size = self._block_size
        return [
            (token_words(sequence.tokens[i * size : (i + 1) * size]), sequence.block_ids[i])
            for i in range(start, end)
        ]
