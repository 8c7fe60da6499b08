"""How many adapters may be in use at once, and which are: those of all that are admitted.

Sequences with the same adapter share its slot; one without an adapter takes none.
"""

from collections import Counter
from collections.abc import Iterable

from segue.workers.scheduler.plan import Decision, Reason
from segue.workers.sequence import Sequence


class AdapterSlots:
    """For one decision. `admitted` use their adapters already."""

    def __init__(self, count: int, admitted: Iterable[Sequence] = ()) -> None:
        if count < 1:
            raise ValueError(f"there must be room for an adapter, got {count}")
        self.count = count
        self._users: Counter[str] = Counter()
        for sequence in admitted:
            self.take(sequence)

    def fit(self, sequence: Sequence) -> bool:
        adapter = sequence.adapter
        return adapter is None or adapter in self._users or len(self._users) < self.count

    def take(self, sequence: Sequence) -> None:
        if sequence.adapter is not None:
            self._users[sequence.adapter] += 1

    def give_back(self, sequence: Sequence) -> None:
        """Of one that has taken."""
        adapter = sequence.adapter
        if adapter is not None:
            self._users[adapter] -= 1
            if not self._users[adapter]:
                del self._users[adapter]

    def held(self, sequence: Sequence) -> Decision:
        return Decision(sequence.attempt, Reason.NO_ADAPTER_SLOT, self.count + 1, self.count)
