"""What of a sequence's leading tokens is in the cache; looking does not change anything."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from segue.cluster.block_hash import WORD_BYTES
from segue.workers.kvcache.node import Node
from segue.workers.kvcache.radix_tree import RadixTree


class PrefixMatch(NamedTuple):
    """At least one of the tokens is left to compute.

    `live_full_blocks` of the matched whole blocks are in use, so that sharing them takes nothing
    of what is available.
    """

    num_tokens: int = 0  # a partly matching last block included
    live_full_blocks: int = 0
    nodes: Sequence[Node] = ()
    part: Node | None = None
    num_part_tokens: int = 0

    @property
    def full_blocks(self) -> int:
        return len(self.nodes)

    @property
    def uses_all_of_part(self) -> bool:
        """The part is a leaf, and all its tokens matched."""
        return self.part is not None and self.num_part_tokens == self.part.num_tokens


NO_MATCH = PrefixMatch()


def match_prefix(
    root: Node,
    tree: RadixTree,
    words: bytes,
    block_size: int,
    is_idle: Callable[[int], bool],
    part_allowed: Callable[[Node], bool] | None,
) -> PrefixMatch:
    """`words`: the tokens, in the tree below `root`. `part_allowed` None: whole blocks only."""
    size, usable = block_size * WORD_BYTES, len(words) - WORD_BYTES
    nodes = tree.walk(root, words, usable)
    start = len(nodes) * size
    part: tuple[Node, int] | None = None
    if part_allowed is not None and start < usable:
        last = nodes[-1] if nodes else root
        piece = words[start : min(start + size, usable)]
        part = tree.best_partial(last, piece, part_allowed)
    if not nodes and part is None:
        return NO_MATCH
    part_node, num_part_tokens = part if part is not None else (None, 0)
    return PrefixMatch(
        num_tokens=len(nodes) * block_size + num_part_tokens,
        live_full_blocks=sum(n.block_id is not None and not is_idle(n.block_id) for n in nodes),
        nodes=nodes,
        part=part_node,
        num_part_tokens=num_part_tokens,
    )
