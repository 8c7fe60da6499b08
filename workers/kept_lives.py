"""Which lives of other workers this one stays connected to: all in use, and some idle ones.

A life that is in use is never let go of, whatever else is met meanwhile; what is bounded is how
many idle ones are kept. Of one worker only its newest life is kept idle. Pure; the clock is passed
in. Lives that a method returns are no longer kept: whoever called lets go of them.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from segue.cluster.identity import WorkerIdentity


class KeptLives:
    def __init__(self, max_idle: int, idle_seconds: float) -> None:
        """Idle ones are kept for `idle_seconds` after they were last met, heard of, or used."""
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._kept: dict[str, list[WorkerIdentity]] = {}  # of each worker; the newest life last
        self._idle: OrderedDict[WorkerIdentity, float] = OrderedDict()  # since when; oldest first
        self._uses: Counter[WorkerIdentity] = Counter()  # of lives that may not be met yet

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def meet(self, life: WorkerIdentity, now: float) -> list[WorkerIdentity]:
        """Keep it; it is the newest life of its worker."""
        lives = self._kept.setdefault(life.worker_id, [])
        if life in lives:
            lives.remove(life)
        lives.append(life)
        if not self._uses[life]:
            self._rest(life, now)
        return self._forget(
            [*(other for other in lives[:-1] if other in self._idle), *self._too_many()]
        )

    def use(self, life: WorkerIdentity) -> None:
        """It is kept until as many `end_use` have followed, also if it is met only later."""
        self._uses[life] += 1
        self._idle.pop(life, None)

    def end_use(self, life: WorkerIdentity, now: float) -> list[WorkerIdentity]:
        self._uses[life] -= 1
        if self._uses[life]:
            return []
        del self._uses[life]
        lives = self._kept.get(life.worker_id, [])
        if life not in lives:
            return []
        if life != lives[-1]:
            return self._forget([life])
        self._rest(life, now)
        return self._forget(self._too_many())

    def hear_of(self, lives: Iterable[WorkerIdentity], now: float) -> list[WorkerIdentity]:
        """These are alive. So no other life of the same workers is, whoever still uses it."""
        dead = []
        for life in lives:
            if life in self._idle:
                self._rest(life, now)
            dead += [other for other in self._kept.get(life.worker_id, ()) if other != life]
        return self._forget(dead)

    def expire(self, now: float) -> list[WorkerIdentity]:
        """Those that were idle for too long, and that nobody has named meanwhile."""
        expired = []
        for life, since in self._idle.items():
            if now - since < self._idle_seconds:
                break
            expired.append(life)
        return self._forget(expired)

    def drop(self, life: WorkerIdentity) -> None:
        """It is gone, or cannot be reached: not kept until it is met again."""
        self._forget([life])

    def _rest(self, life: WorkerIdentity, now: float) -> None:
        self._idle[life] = now
        self._idle.move_to_end(life)

    def _too_many(self) -> list[WorkerIdentity]:
        excess = len(self._idle) - self._max_idle
        return [life for life, _ in zip(self._idle, range(excess), strict=False)]

    def _forget(self, lives: list[WorkerIdentity]) -> list[WorkerIdentity]:
        """Returns those of them that were kept."""
        gone = []
        for life in lives:
            kept = self._kept.get(life.worker_id, [])
            if life in kept:
                kept.remove(life)
                gone.append(life)
            if not kept:
                self._kept.pop(life.worker_id, None)
            self._idle.pop(life, None)
        return gone
