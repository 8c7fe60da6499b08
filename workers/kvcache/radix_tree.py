"""The tree of published blocks: a child holds the tokens that follow those of its parent.

A node is one block. A full one has the chain key of its tokens; a partial one has none, and no
children. Equal tokens under equal roots are one node. Where a node's KV lies is the business of
the code that moves it; the tree only carries the answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from segue.cluster.block_hash import WORD_BYTES, chained_key
from segue.workers.kvcache.ordered_pieces import OrderedPieces, common_tokens

MAX_CANDIDATES = 64  # partly matching children that are looked at


@dataclass(slots=True, eq=False)
class Node:
    """`block_id` or `slot` is set while it is in the tree; a root has neither and no tokens."""

    parent: "Node | None"
    piece: bytes  # its tokens as words
    key: bytes | None
    block_id: int | None = None
    slot: int | None = None
    children: dict[bytes, "Node"] = field(default_factory=dict)
    ordered: OrderedPieces | None = None  # the children's pieces, if there are several

    @property
    def is_full(self) -> bool:
        return self.key is not None

    @property
    def num_tokens(self) -> int:
        return len(self.piece) // WORD_BYTES


class RadixTree:
    """Costs of an operation depend on the tokens it is about, not on the size of the tree."""

    def __init__(self, block_size: int) -> None:
        self._piece_bytes = block_size * WORD_BYTES
        self._roots: dict[bytes, Node] = {}
        self._by_key: dict[bytes, Node] = {}

    def find(self, key: bytes) -> Node | None:
        """The full node with this chain key."""
        return self._by_key.get(key)

    def root(self, key: bytes) -> Node | None:
        return self._roots.get(key)

    def grow_root(self, key: bytes) -> Node:
        """The root for `key`; it stays as long as something is inserted below it."""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Node(None, b"", key)
        return root

    def walk(self, root_key: bytes, words: bytes) -> tuple[Node, ...]:
        """The full nodes that hold the leading whole pieces of `words`."""
        node = self._roots.get(root_key)
        found: list[Node] = []
        size = self._piece_bytes
        if node is not None:
            for start in range(0, len(words) - size + 1, size):
                node = node.children.get(words[start : start + size])
                if node is None:
                    break
                found.append(node)
        return tuple(found)

    def best_partial(
        self, parent: Node, piece: bytes, allowed: Callable[[Node], bool]
    ) -> tuple[Node, int] | None:
        """The allowed child that shares most leading tokens with `piece`, and how many; at
        least one."""
        ordered = parent.ordered
        nearest = ordered.nearest(piece, MAX_CANDIDATES) if ordered else parent.children
        for candidate in nearest:
            shared = common_tokens(candidate, piece)
            if not shared:
                return None
            child = parent.children[candidate]
            if allowed(child):
                return child, shared
        return None

    def insert(self, parent: Node, piece: bytes) -> Node:
        """A new child; a piece of fewer tokens than a block makes a partial one."""
        if piece in parent.children or parent.key is None:
            raise ValueError("the tree holds this piece already, or its parent is partial")
        full = len(piece) == self._piece_bytes
        node = Node(parent, piece, chained_key(parent.key, piece) if full else None)
        parent.children[piece] = node
        if parent.ordered is not None:
            parent.ordered.add(piece)
        elif len(parent.children) > 1:
            parent.ordered = OrderedPieces(parent.children)
        if node.key is not None:
            self._by_key[node.key] = node
        return node

    def detach(self, node: Node) -> list[Node]:
        """Take a node and all below it out of the tree; returns them, parents first."""
        parent = node.parent
        if parent is None or parent.children.get(node.piece) is not node:
            raise ValueError("the node is not in the tree")
        del parent.children[node.piece]
        if parent.ordered is not None:
            parent.ordered.remove(node.piece)
            if len(parent.children) < 2:
                parent.ordered = None
        if not parent.children and parent.parent is None and parent.key is not None:
            del self._roots[parent.key]
        removed = list(_subtree(node))
        for gone in removed:
            gone.parent = None
            if gone.key is not None:
                del self._by_key[gone.key]
        return removed

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        for root in self._roots.values():
            for child in root.children.values():
                yield from _subtree(child)

    def check_integrity(self) -> None:
        """Raise AssertionError unless links, keys and orders agree."""
        keys: dict[bytes, Node] = {}
        for root in self._roots.values():
            assert root.children, "an empty root was kept"
            for node in (root, *(n for child in root.children.values() for n in _subtree(child))):
                assert (node.ordered is not None) == (len(node.children) > 1)
                assert node.ordered is None or list(node.ordered) == sorted(node.children)
                assert node.is_full or not node.children
                for piece, child in node.children.items():
                    assert child.parent is node and child.piece == piece
                if node is not root and node.key is not None:
                    assert node.parent is not None and node.parent.key is not None
                    assert node.key == chained_key(node.parent.key, node.piece)
                    keys[node.key] = node
        assert keys == self._by_key


def _subtree(node: Node) -> Iterator[Node]:
    pending = [node]
    while pending:
        following = pending.pop()
        yield following
        pending.extend(following.children.values())
