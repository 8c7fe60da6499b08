"""Children of a node: one, several, and several that begin alike, against a plain dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.block_hash import block_keys, token_words
from segue.workers.kvcache.node import Node
from segue.workers.kvcache.ordered_pieces import common_tokens

ROOT_KEY = b"root"
pieces = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(token_words)


@given(st.lists(st.tuples(st.booleans(), pieces), max_size=40), pieces)
def test_children_are_found_and_the_nearest_come_first(
    changes: list[tuple[bool, bytes]], wanted: bytes
) -> None:
    node = Node(None, b"", True, ROOT_KEY)
    model: dict[bytes, Node] = {}
    for comes, piece in changes:
        if comes:
            child = node.put(piece, is_full=False)
            assert model.setdefault(piece, child) is child
        elif piece in model:
            node.disown(model.pop(piece))
        assert {child.piece: child for child in node.children()} == model
        assert node.is_leaf == (not model)
    assert node.child(wanted) is model.get(wanted)
    shares = [common_tokens(child.piece, wanted) for child in node.nearest(wanted, 100)]
    assert shares == sorted(shares, reverse=True)
    assert sorted(shares) == sorted(n for n in (common_tokens(p, wanted) for p in model) if n)


@given(st.lists(pieces, min_size=1, max_size=5), pieces)
def test_a_stranger_is_not_disowned(own: list[bytes], piece: bytes) -> None:
    node = Node(None, b"", True, ROOT_KEY)
    for each in own:
        node.put(each, is_full=False)
    with pytest.raises(ValueError, match="not a child"):
        node.disown(Node(node, piece, False))


def test_a_partial_node_has_no_children() -> None:
    with pytest.raises(ValueError, match="partial"):
        Node(None, b"", False).put(token_words([1]), is_full=False)


@given(st.integers(0, 5), st.integers(0, 5))
def test_keys_are_those_of_the_chain_whenever_they_are_asked_for(depth: int, asked: int) -> None:
    nodes = [Node(None, b"", True, ROOT_KEY)]
    for number in range(depth):
        nodes.append(nodes[-1].put(token_words([number, 7]), is_full=True))
    expected = [ROOT_KEY, *block_keys(ROOT_KEY, [t for n in range(depth) for t in (n, 7)], 2)]
    assert nodes[min(asked, depth)].key == expected[min(asked, depth)]
    assert [node.key for node in nodes] == expected
    assert nodes[-1].put(token_words([9]), is_full=False).key is None
