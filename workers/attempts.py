"""Every attempt that this worker has taken on, from arrival to its one end.

received == sum(ended.values()) + len(running) holds at any time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.identity import AttemptId
from segue.workers.sequence import Sequence


@dataclass(slots=True, eq=False)
class Running:
    """One attempt and what ends it early."""

    sequence: Sequence
    abort: Callable[[str], None]  # ends the attempt without a word to the gateway
    events: asyncio.Queue[object] = field(default_factory=asyncio.Queue)


class Attempts:
    """Lives on the event loop. `limit` bounds how many are taken on at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[AttemptId, Running] = {}
        self.received = 0
        self.ended: Counter[str] = Counter()
        self.draining = False

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, running: Running) -> None:
        """Raises AttemptFailed if the attempt cannot be taken on."""
        attempt = running.sequence.attempt
        if attempt in self._running:
            raise AttemptFailed(FailureKind.REFUSED, f"{attempt} is here already", retryable=False)
        if self.draining:
            raise AttemptFailed(FailureKind.DRAINING, "the worker takes no new requests")
        if len(self._running) >= self._limit:
            raise AttemptFailed(FailureKind.REFUSED, f"{self._limit} attempts are here already")
        self._running[attempt] = running
        self.received += 1

    def end(self, attempt: AttemptId, outcome: str) -> Running | None:
        """The terminal transition. None: it has ended before."""
        running = self._running.pop(attempt, None)
        if running is not None:
            self.ended[outcome] += 1
        return running

    def get(self, attempt: AttemptId) -> Running | None:
        return self._running.get(attempt)

    def all(self) -> list[Running]:
        return list(self._running.values())
