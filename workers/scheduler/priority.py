"""In which order sequences are served: by priority, by arrival, and nobody waits for ever.

Ageing: waiting `ageing_seconds` is worth one step of priority. Since everybody ages at the same
pace, the order of two sequences never changes while they wait. So ageing is a term of the sort
key, nothing is ever sorted again, and no clock is needed: a sequence of priority p is overtaken
only by those of priority p - n that arrived at most n * ageing_seconds after it.

Arrival is at the gateway: whoever is tried again, or moves here, stands where it stood. Of those
who arrived at once the first to come here is first.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from segue.workers.sequence import Sequence

_order = attrgetter("order")


class Ranking:
    """Gives each sequence its place. `ageing_seconds` None: priority alone, then arrival."""

    def __init__(self, ageing_seconds: float | None) -> None:
        if ageing_seconds is not None and not 0 < ageing_seconds < float("inf"):
            raise ValueError(f"ageing_seconds must be positive and finite, got {ageing_seconds}")
        self._ageing_seconds = ageing_seconds
        self._num_placed = 0

    def place(self, sequence: Sequence) -> None:
        """Called once in a sequence's life: whoever is paused keeps its place."""
        self._num_placed += 1
        rank: float = sequence.request.priority
        if self._ageing_seconds is not None:
            rank = sequence.arrived + rank * self._ageing_seconds
        sequence.order = (rank, sequence.arrived, self._num_placed)


class RankedQueue:
    """Sequences in order of their places, which are unique."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.in_order())

    def in_order(self) -> list[Sequence]:
        return self._sequences.copy()

    def __contains__(self, sequence: Sequence) -> bool:
        return self._find(sequence) is not None

    def add(self, sequence: Sequence) -> None:
        sequences = self._sequences
        if not sequences or sequences[-1].order < sequence.order:
            sequences.append(sequence)
        else:
            insort(sequences, sequence, key=_order)

    def discard(self, sequence: Sequence) -> bool:
        """False: it is not here."""
        index = self._find(sequence)
        if index is None:
            return False
        del self._sequences[index]
        return True

    def take_all(self, sequences: list[Sequence]) -> None:
        """`discard` of each; most often they are the first ones, in this order."""
        if self._sequences[: len(sequences)] == sequences:
            del self._sequences[: len(sequences)]
            return
        for sequence in sequences:
            self.discard(sequence)

    def _find(self, sequence: Sequence) -> int | None:
        sequences = self._sequences
        index = bisect_left(sequences, sequence.order, key=_order)
        if index < len(sequences) and sequences[index] is sequence:
            return index
        return None
