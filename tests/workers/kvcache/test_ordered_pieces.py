"""Neighbours in lexicographic order share most: checked against every piece there is."""

from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.block_hash import token_words
from segue.workers.kvcache import ordered_pieces
from segue.workers.kvcache.ordered_pieces import OrderedPieces, common_tokens

tokens = st.lists(st.sampled_from([0, 1, 255, 256, 65536, 2**32 - 1]), min_size=1, max_size=5)


@given(tokens, tokens)
def test_common_tokens_are_those_before_the_first_difference(
    one: list[int], other: list[int]
) -> None:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    assert common_tokens(token_words(one), token_words(other)) == shared


@given(st.lists(tokens, unique_by=tuple, min_size=1, max_size=40), st.data())
def test_nearest_pieces_come_first(many: list[list[int]], data: st.DataObject) -> None:
    pieces = [token_words(piece) for piece in many]
    ordered = OrderedPieces(pieces)
    for gone in data.draw(st.lists(st.sampled_from(pieces), unique=True)):
        ordered.remove(gone)
        pieces.remove(gone)
    assert list(ordered) == sorted(pieces)
    wanted = token_words(data.draw(tokens))
    found = list(ordered.nearest(wanted, len(pieces)))
    assert sorted(found) == sorted(pieces)
    shared = [common_tokens(piece, wanted) for piece in found]
    assert shared == sorted(shared, reverse=True)


def test_long_runs_are_split_and_empty_ones_dropped() -> None:
    pieces = [token_words([number]) for number in range(3 * ordered_pieces.MAX_RUN)]
    ordered = OrderedPieces(reversed(pieces))
    assert list(ordered) == sorted(pieces)
    for piece in pieces[:-1]:
        ordered.remove(piece)
    assert list(ordered) == pieces[-1:]
    assert list(ordered.nearest(pieces[0], 3)) == pieces[-1:]
