"""A block of published content, and its place among others: a child's tokens follow its parent's.

Most nodes have one child, or several of which no two begin with the same token, so these cases
cost one look into a dictionary; children that begin alike are kept in lexicographic order.
"""

from collections.abc import Iterable, Iterator

from segue.cluster.block_hash import WORD_BYTES, chained_key
from segue.workers.kvcache.ordered_pieces import OrderedPieces


class Node:
    """`block_id` or `slot` is set while it is in a tree; a root has neither and no tokens.

    Most keys are never asked for, so a key is computed when it is, and then kept.
    """

    __slots__ = ("_key", "below", "block_id", "is_full", "parent", "piece", "slot")

    def __init__(
        self, parent: "Node | None", piece: bytes, is_full: bool, key: bytes | None = None
    ) -> None:
        self.parent = parent
        self.piece = piece  # its tokens as words
        self.is_full = is_full  # a block's worth of tokens; others have no key and no children
        self.block_id: int | None = None
        self.slot: int | None = None
        self._key = key
        # Its children: none, the only one, or several by first token.
        self.below: Node | dict[bytes, Node | _Alike] | None = None

    @property
    def key(self) -> bytes | None:
        """The chain key of all tokens up to its last one; None for a partial node.

        A node that has left its tree has the key that was known of it, if it was.
        """
        if self._key is None and self.is_full:
            unknown: list[Node] = []
            node: Node | None = self
            while node is not None and node._key is None:
                unknown.append(node)
                node = node.parent
            if node is not None:
                key = node._key
                for following in reversed(unknown):
                    assert key is not None
                    key = following._key = chained_key(key, following.piece)
        return self._key

    @property
    def num_tokens(self) -> int:
        return len(self.piece) // WORD_BYTES

    # -- children ----------------------------------------------------------------------------

    @property
    def is_leaf(self) -> bool:
        return self.below is None

    def children(self) -> Iterator["Node"]:
        below = self.below
        if isinstance(below, Node):
            yield below
            return
        for there in (below or {}).values():
            if isinstance(there, Node):
                yield there
            else:
                yield from there.by_piece.values()

    def _beginning(self, first: bytes) -> "Node | _Alike | None":
        """The child, or children, whose first token is this one."""
        below = self.below
        if below is None:
            return None
        if isinstance(below, Node):
            return below if below.piece[:WORD_BYTES] == first else None
        return below.get(first)

    def leads_to(self, piece: bytes) -> bool:
        """Some child begins with the same token."""
        below = self.below
        if isinstance(below, dict):
            return piece[:WORD_BYTES] in below
        return below is not None and below.piece[:WORD_BYTES] == piece[:WORD_BYTES]

    def child(self, piece: bytes) -> "Node | None":
        there = self._beginning(piece[:WORD_BYTES])
        if there is None:
            return None
        if isinstance(there, Node):
            return there if there.piece == piece else None
        return there.by_piece.get(piece)

    def nearest(self, piece: bytes, most: int) -> Iterable["Node"]:
        """Up to `most` children that share leading tokens with `piece`, those with more first."""
        there = self._beginning(piece[:WORD_BYTES])
        if there is None:
            return ()
        return (there,) if isinstance(there, Node) else there.nearest(piece, most)

    def put(self, piece: bytes, is_full: bool) -> "Node":
        """The child with these tokens, made if there is none. Raises ValueError if it may have
        none."""
        below = self.below
        if below is None:
            if not self.is_full:
                raise ValueError("a partial node has no children")
            node = self.below = Node(self, piece, is_full)
            return node
        if isinstance(below, Node):
            if below.piece == piece:
                return below
            below = self.below = {below.piece[:WORD_BYTES]: below}
        first = piece[:WORD_BYTES]
        there = below.get(first)
        if there is None:
            node = below[first] = Node(self, piece, is_full)
            return node
        if isinstance(there, Node):
            if there.piece == piece:
                return there
            alike = below[first] = _Alike()
            alike.add(there)
            there = alike
        found = there.by_piece.get(piece)
        if found is None:
            found = Node(self, piece, is_full)
            there.add(found)
        return found

    def disown(self, child: "Node") -> None:
        """Raises ValueError if it is not a child."""
        below = self.below
        if below is child:
            self.below = None
            return
        first = child.piece[:WORD_BYTES]
        many = below if isinstance(below, dict) else {}
        there = many.get(first)
        if isinstance(there, _Alike):
            if not there.remove(child):
                return
        elif there is not child:
            raise ValueError("the node is not a child of this one")
        del many[first]
        if not many:
            self.below = None


class _Alike:
    """Children that begin with the same token."""

    __slots__ = ("by_piece", "order")

    def __init__(self) -> None:
        self.by_piece: dict[bytes, Node] = {}
        self.order = OrderedPieces()

    def add(self, child: Node) -> None:
        self.by_piece[child.piece] = child
        self.order.add(child.piece)

    def remove(self, child: Node) -> bool:
        """True: none is left."""
        if self.by_piece.get(child.piece) is not child:
            raise ValueError("the node is not a child of this one")
        del self.by_piece[child.piece]
        self.order.remove(child.piece)
        return not self.by_piece

    def nearest(self, piece: bytes, most: int) -> Iterator[Node]:
        return (self.by_piece[found] for found in self.order.nearest(piece, most))
