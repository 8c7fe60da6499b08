"""Says which silent workers may be declared dead: not most of a pool at once. Pure, no clock.

That most of a pool falls silent at one time is more likely our own doing (a slow loop, a network
cut off) than theirs, and to end them all would lose what they still serve. So then only a part of
the pool dies each minute. Those that are started in their place show whether we can hear: once half
of the pool is heard, the others are silent on their own account.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from segue.cluster.config.control import ControlConfig
from segue.cluster.identity import WorkerIdentity

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Listened:
    """A worker that should beat, and for how long it has not."""

    identity: WorkerIdentity
    silent_s: float


class PoolSilence:
    """What one pool has lost to silence of late; bounded by its size."""

    def __init__(self, control: ControlConfig) -> None:
        self._control = control
        self._deaths: deque[float] = deque()

    def is_doubtful(self, pool: Sequence[Listened]) -> bool:
        """More than half of those that should beat do not."""
        num_silent = sum(one.silent_s >= self._control.suspect_after_s for one in pool)
        return 2 * num_silent > len(pool)

    def condemned(self, pool: Sequence[Listened], size: int, now: float) -> list[Listened]:
        """Who dies now, the longest silent first; they count as dead from here on. `size`: how many
        workers the pool has, also those that do not beat yet or any more."""
        while self._deaths and now - self._deaths[0] >= WINDOW_S:
            self._deaths.popleft()
        late = [one for one in pool if one.silent_s >= self._control.dead_after_s]
        late.sort(key=lambda one: (-one.silent_s, one.identity.worker_id))
        if self.is_doubtful(pool):
            share = max(1, int(size * self._control.doubtful_deaths_share))
            late = late[: max(0, share - len(self._deaths))]
        self._deaths.extend(now for _ in late)
        return late
