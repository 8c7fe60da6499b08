"""Every attempt that this worker has taken on, from arrival to its one end.

received == sum(ended.values()) + len(running) holds at any time. An attempt id is used once: what
has ended here, or was aborted before it arrived, is refused if it comes (again).
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from segue.cluster.errors import AttemptFailed, FailureKind, StaleKind
from segue.cluster.fences import Fences, Use
from segue.cluster.identity import AttemptId
from segue.workers.sequence import Sequence

MAX_REMEMBERED = 4096  # attempts that are over; messages about them are seconds late, not hours


@dataclass(slots=True, eq=False)
class Running:
    """One attempt and what ends it early."""

    sequence: Sequence
    abort: Callable[[str], None]  # ends the attempt without a word to the gateway
    events: asyncio.Queue[object] = field(default_factory=asyncio.Queue)
    awaits_engine: bool = True  # it has not heard the engine's last word of the sequence


class Attempts:
    """Lives on the event loop. `limit` bounds how many are taken on at once."""

    def __init__(self, limit: int, fences: Fences | None = None) -> None:
        self._limit = limit
        self._fences = fences or Fences()
        self._running: dict[AttemptId, Running] = {}
        self._over: OrderedDict[AttemptId, None] = OrderedDict()
        self.received = 0
        self.ended: Counter[str] = Counter()
        self.draining = False

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, running: Running) -> None:
        """Raises AttemptFailed if the attempt cannot be taken on."""
        attempt = running.sequence.attempt
        if attempt in self._running or attempt in self._over:
            use = Use.SUBMIT if running.sequence.source is None else Use.RESERVE
            self._fences.refused(use, StaleKind.ATTEMPT)
        if attempt in self._running:
            raise AttemptFailed(FailureKind.REFUSED, f"{attempt} is here already", retryable=False)
        if attempt in self._over:
            raise AttemptFailed(FailureKind.REFUSED, f"{attempt} is over", retryable=False)
        self.refuse_if_draining()
        if len(self._running) >= self._limit:
            raise AttemptFailed(FailureKind.BUSY, f"{self._limit} attempts are here already")
        self._running[attempt] = running
        self.received += 1

    def refuse_if_draining(self) -> None:
        if self.draining:
            raise AttemptFailed(FailureKind.DRAINING, "the worker takes no new requests")

    def end(self, attempt: AttemptId, outcome: str) -> Running | None:
        """The terminal transition. None: it has ended before."""
        running = self._running.pop(attempt, None)
        if running is not None:
            self.ended[outcome] += 1
            self.forbid(attempt)
        return running

    def abort(self, attempt: AttemptId, reason: str) -> None:
        """Nobody wants it any more, whether it is here, was here, or is still on its way."""
        running = self._running.get(attempt)
        if running is not None:
            running.abort(reason)
        else:
            self.forbid(attempt)

    def forbid(self, attempt: AttemptId) -> None:
        """Refuse the attempt should it arrive: the message that ends it has overtaken it."""
        self._over[attempt] = None
        self._over.move_to_end(attempt)
        if len(self._over) > MAX_REMEMBERED:
            self._over.popitem(last=False)

    def get(self, attempt: AttemptId) -> Running | None:
        return self._running.get(attempt)

    def of(self, sequence: Sequence) -> Running | None:
        """The running attempt whose sequence this very object is."""
        running = self._running.get(sequence.attempt)
        return running if running is not None and running.sequence is sequence else None

    def all(self) -> list[Running]:
        return list(self._running.values())
