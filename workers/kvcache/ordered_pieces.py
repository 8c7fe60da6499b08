"""Pieces of tokens in lexicographic order: those that share most with a given one are beside it."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from segue.cluster.block_hash import WORD_BYTES

MAX_RUN = 512


def common_tokens(one: bytes, other: bytes) -> int:
    """How many leading tokens are equal."""
    length = min(len(one), len(other))
    difference = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    if not difference:
        return length // WORD_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return lowest_bit // (8 * WORD_BYTES)


class OrderedPieces:
    """A sorted set in runs of bounded length, so that its size hardly tells in its costs."""

    __slots__ = ("_runs",)

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        self._runs: list[list[bytes]] = []
        for piece in pieces:
            self.add(piece)

    def __iter__(self) -> Iterator[bytes]:
        for run in self._runs:
            yield from run

    def add(self, piece: bytes) -> None:
        """`piece` must not be in the set."""
        if not self._runs:
            self._runs.append([piece])
            return
        index = self._run_of(piece)
        run = self._runs[index]
        insort(run, piece)
        if len(run) > MAX_RUN:
            half = len(run) // 2
            self._runs[index : index + 1] = [run[:half], run[half:]]

    def remove(self, piece: bytes) -> None:
        """`piece` must be in the set."""
        index = self._run_of(piece)
        run = self._runs[index]
        del run[bisect_left(run, piece)]
        if not run:
            del self._runs[index]

    def nearest(self, piece: bytes, most: int) -> Iterator[bytes]:
        """Up to `most` pieces, those that share more leading tokens with `piece` first."""
        if not self._runs:
            return
        index = self._run_of(piece)
        position = bisect_left(self._runs[index], piece)
        before, after = self._backwards(index, position), self._forwards(index, position)
        left, right = next(before, None), next(after, None)
        for _ in range(most):
            if right is not None and (
                left is None or common_tokens(right, piece) >= common_tokens(left, piece)
            ):
                yield right
                right = next(after, None)
            elif left is not None:
                yield left
                left = next(before, None)
            else:
                return

    def _run_of(self, piece: bytes) -> int:
        """The first run whose last piece is not before `piece`, or the last run."""
        found = bisect_left(self._runs, piece, key=lambda run: run[-1])
        return min(found, len(self._runs) - 1)

    def _forwards(self, index: int, position: int) -> Iterator[bytes]:
        for run in range(index, len(self._runs)):
            pieces = self._runs[run]
            for place in range(position if run == index else 0, len(pieces)):
                yield pieces[place]

    def _backwards(self, index: int, position: int) -> Iterator[bytes]:
        for run in range(index, -1, -1):
            pieces = self._runs[run]
            for place in range((position if run == index else len(pieces)) - 1, -1, -1):
                yield pieces[place]
