"""What of a sequence's leading tokens is in the cache; looking does not change anything."""

from collections.abc import Callable
from dataclasses import dataclass, field

from segue.cluster.block_hash import WORD_BYTES, chained_key, token_words
from segue.workers.kvcache.radix_tree import Node, RadixTree


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """At least one of the tokens is left to compute.

    `live_full_blocks` of the matched whole blocks are in use, so that sharing them takes nothing
    of what is available. `first_unmatched_key` names the first whole block that could be shared
    and that the cache does not hold, if there is one.
    """

    num_tokens: int  # a partly matching last block included
    live_full_blocks: int
    first_unmatched_key: bytes | None
    last_key: bytes  # of the last matched whole block, or of the root
    nodes: tuple[Node, ...] = field(default=(), repr=False)
    part: Node | None = field(default=None, repr=False)
    num_part_tokens: int = 0

    @property
    def full_blocks(self) -> int:
        return len(self.nodes)

    @property
    def uses_all_of_part(self) -> bool:
        """The part is a leaf, and all its tokens matched."""
        return self.part is not None and self.num_part_tokens == self.part.num_tokens


def match_prefix(
    tree: RadixTree,
    root_key: bytes,
    tokens: list[int],
    block_size: int,
    is_idle: Callable[[int], bool],
    part_allowed: Callable[[Node], bool] | None,
) -> PrefixMatch:
    """`part_allowed` None: whole blocks only."""
    words = token_words(tokens)
    size, usable = block_size * WORD_BYTES, (len(tokens) - 1) * WORD_BYTES
    nodes = tree.walk(root_key, words[:usable])
    last = nodes[-1] if nodes else tree.root(root_key)
    last_key = root_key if last is None or last.key is None else last.key
    start = len(nodes) * size
    part: tuple[Node, int] | None = None
    if last is not None and part_allowed is not None and start < usable:
        part = tree.best_partial(last, words[start : min(start + size, usable)], part_allowed)
    unmatched: bytes | None = None
    if start + size <= usable:
        unmatched = chained_key(last_key, words[start : start + size])
    part_node, num_part_tokens = part if part is not None else (None, 0)
    return PrefixMatch(
        num_tokens=len(nodes) * block_size + num_part_tokens,
        live_full_blocks=sum(n.block_id is not None and not is_idle(n.block_id) for n in nodes),
        first_unmatched_key=unmatched,
        last_key=last_key,
        nodes=nodes,
        part=part_node,
        num_part_tokens=num_part_tokens,
    )
