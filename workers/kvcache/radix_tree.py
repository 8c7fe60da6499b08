"""The tree of published blocks, a root for each scope of keys.

Equal tokens under equal roots are one node. Where a node's KV lies is the business of the code
that moves it; the tree only carries the answer.
"""

from collections.abc import Callable, Iterator

from segue.cluster.block_hash import WORD_BYTES, chained_key
from segue.workers.kvcache.node import Node
from segue.workers.kvcache.ordered_pieces import common_tokens

MAX_CANDIDATES = 64  # partly matching children that are looked at


class RadixTree:
    """Costs of an operation depend on the tokens it is about, not on the size of the tree."""

    def __init__(self, block_size: int) -> None:
        self._piece_bytes = block_size * WORD_BYTES
        self._roots: dict[bytes, Node] = {}

    def root(self, key: bytes) -> Node | None:
        return self._roots.get(key)

    def grow_root(self, key: bytes) -> Node:
        """The root for `key`; it stays as long as something is inserted below it."""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Node(None, b"", True, key)
        return root

    def walk(self, root: Node, words: bytes, end: int) -> list[Node]:
        """The full nodes that hold the leading whole pieces of `words[:end]`."""
        found: list[Node] = []
        size = self._piece_bytes
        node = root
        for start in range(0, end - size + 1, size):
            following = node.child(words[start : start + size])
            if following is None:
                break
            node = following
            found.append(node)
        return found

    def best_partial(
        self, parent: Node, piece: bytes, allowed: Callable[[Node], bool]
    ) -> tuple[Node, int] | None:
        """The allowed child that shares most leading tokens with `piece`, and how many; at
        least one."""
        for child in parent.nearest(piece, MAX_CANDIDATES):
            shared = common_tokens(child.piece, piece)
            if not shared:
                return None
            if allowed(child):
                return child, shared
        return None

    def detach(self, node: Node) -> list[Node]:
        """Take a node and all below it out of the tree; returns them, parents first."""
        removed = [node] if node.is_leaf else list(_subtree(node))
        self.detach_leaf(node)
        for gone in removed:
            gone.parent = None
        return removed

    def detach_leaf(self, node: Node) -> None:
        """Take a node without children out of the tree."""
        parent = node.parent
        if parent is None:
            raise ValueError("the node is not in the tree")
        parent.disown(node)
        node.parent = None
        if parent.below is None and parent.parent is None and parent.key is not None:
            del self._roots[parent.key]

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        for root in self._roots.values():
            for child in root.children():
                yield from _subtree(child)

    def check_integrity(self) -> None:
        """Raise AssertionError unless links and keys agree."""
        for key, root in self._roots.items():
            assert root.key == key and not root.is_leaf, "an empty root was kept"
            for node in (root, *(n for child in root.children() for n in _subtree(child))):
                pieces = [child.piece for child in node.children()]
                assert len(set(pieces)) == len(pieces)
                assert node.is_full or not pieces
                for child in node.children():
                    assert child.parent is node and node.child(child.piece) is child
                    assert child.is_full == (len(child.piece) == self._piece_bytes)
                if node is not root and node.is_full:
                    assert node.parent is not None and node.parent.key is not None
                    assert node.key == chained_key(node.parent.key, node.piece)


def _subtree(node: Node) -> Iterator[Node]:
    pending = [node]
    while pending:
        following = pending.pop()
        yield following
        pending.extend(following.children())
