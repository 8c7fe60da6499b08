"""What became of the credits that were asked for at this worker: how many wait, how it ended."""

from asyncio import CancelledError
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from segue.cluster.errors import AttemptFailed, SegueError
from segue.cluster.handoff import ReserveOutcome
from segue.workers.landing import Landing


class Credits:
    """`landings` are those that wait for a credit or hold one; counters only ever grow."""

    def __init__(
        self, landings: Callable[[], Iterable[Landing]], clock: Callable[[], float]
    ) -> None:
        self._landings = landings
        self._clock = clock
        self.granted = 0
        self.expired = 0  # granted, but its source let go of the lease, or is gone
        self.waited_seconds = 0.0  # by those that were granted
        self.refused: Counter[str] = Counter()

    async def counted(self, answer: Awaitable[ReserveOutcome]) -> ReserveOutcome:
        """The answer to a reservation, which is counted once, whatever it is."""
        began = self._clock()
        try:
            outcome = await answer
        except AttemptFailed as error:
            self.refused[error.failure.value] += 1
            raise
        except SegueError:
            self.refused["source_unknown"] += 1  # it could not be met
            raise
        except CancelledError:
            self.refused["caller_gone"] += 1
            raise
        if outcome.failure is not None:
            self.refused[outcome.failure.kind.value] += 1
        else:
            self.granted += 1
            self.waited_seconds += self._clock() - began
        return outcome

    def gauges(self) -> dict[str, float]:
        """Of this moment. `next_deadline`: when the first of those that wait gives up."""
        now = self._clock()
        landings = list(self._landings())
        waiting = [landing for landing in landings if not landing.granted.done()]
        gauges = {
            "credits_waiting": float(len(waiting)),
            "credits_held": float(sum(landing.has_credit for landing in landings)),
            "credit_oldest_wait_seconds": 0.0,
        }
        if waiting:
            oldest = min(landing.asked for landing in waiting)
            end = min(lg.asked + lg.reservation.wait_seconds for lg in waiting)
            gauges["credit_oldest_wait_seconds"] = now - oldest
            gauges["credit_next_deadline_seconds"] = max(0.0, end - now)
        return gauges

    def counters(self) -> dict[str, float]:
        return {
            "credits_granted": float(self.granted),
            "credits_expired": float(self.expired),
            "credit_wait_seconds": self.waited_seconds,
            **{f"credits_refused_{reason}": float(n) for reason, n in self.refused.items()},
        }
