"""Which workers said lately that they are full, and may not be asked yet. Pure; clock passed in.

When a worker's pause is over, one request finds out whether there is room; the others wait for what
it hears. The first that a worker takes ends that.
"""

from collections import OrderedDict

from segue.cluster.identity import WorkerIdentity

PAUSE_SECONDS = 0.25
MAX_REMEMBERED = 1024


class BusyWorkers:
    def __init__(self) -> None:
        self._asked_again_at: OrderedDict[WorkerIdentity, float] = OrderedDict()

    def may_be_asked(self, worker: WorkerIdentity, now: float) -> bool:
        return now >= self._asked_again_at.get(worker, now)

    def refused(self, worker: WorkerIdentity, now: float) -> None:
        """It is full."""
        self._asked_again_at[worker] = now + PAUSE_SECONDS
        self._asked_again_at.move_to_end(worker)
        if len(self._asked_again_at) > MAX_REMEMBERED:
            self._asked_again_at.popitem(last=False)

    def asked(self, worker: WorkerIdentity, now: float) -> None:
        """If it was full, nobody else asks before this one was heard of."""
        if worker in self._asked_again_at:
            self._asked_again_at[worker] = now + PAUSE_SECONDS

    def took(self, worker: WorkerIdentity) -> None:
        """It has room."""
        self._asked_again_at.pop(worker, None)
