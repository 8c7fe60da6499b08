"""In which order sequences are served: by priority, by arrival, and nobody waits for ever.

Ageing: waiting `ageing_seconds` is worth one step of priority. Since everybody ages at the same
pace, the order of two sequences never changes while they wait. So ageing is a term of the sort
key, nothing is ever sorted again, and no clock is needed: a sequence of priority p is overtaken
only by those of priority p - n that arrived at most n * ageing_seconds after it.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator

from segue.workers.sequence import Sequence


class Ranking:
    """Gives each sequence its place. `ageing_seconds` None: priority alone, then arrival."""

    def __init__(self, ageing_seconds: float | None) -> None:
        if ageing_seconds is not None and not 0 < ageing_seconds < float("inf"):
            raise ValueError(f"ageing_seconds must be positive and finite, got {ageing_seconds}")
        self._ageing_seconds = ageing_seconds
        self._arrivals = 0

    def place(self, sequence: Sequence) -> None:
        """Called once in a sequence's life: whoever is paused keeps its place."""
        self._arrivals += 1
        rank = float(sequence.request.priority)
        if self._ageing_seconds is not None:
            rank = sequence.arrived + rank * self._ageing_seconds
        sequence.order = (rank, self._arrivals)


class RankedQueue:
    """Sequences in order of their places, which are unique."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.in_order())

    def in_order(self) -> list[Sequence]:
        return [entry[2] for entry in self._entries]

    def __contains__(self, sequence: Sequence) -> bool:
        return self._find(sequence) is not None

    def add(self, sequence: Sequence) -> None:
        entry = (*sequence.order, sequence)
        if not self._entries or self._entries[-1] < entry:
            self._entries.append(entry)
        else:
            insort(self._entries, entry)

    def discard(self, sequence: Sequence) -> bool:
        """False: it is not here."""
        entries = self._entries
        if entries and entries[0][2] is sequence:
            del entries[0]
            return True
        index = self._find(sequence)
        if index is None:
            return False
        del entries[index]
        return True

    def take_all(self, sequences: Collection[Sequence]) -> None:
        """`discard` of each; all that are here, most often."""
        if self.in_order() == [*sequences]:
            self._entries.clear()
            return
        for sequence in sequences:
            self.discard(sequence)

    def _find(self, sequence: Sequence) -> int | None:
        entries = self._entries
        index = bisect_left(entries, sequence.order)
        if index < len(entries) and entries[index][2] is sequence:
            return index
        return None
