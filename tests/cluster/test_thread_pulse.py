"""What can be told of a thread from outside: it rests, works, is stuck somewhere, has ended."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from segue.cluster.thread_pulse import ThreadPulse


class Worker:
    """A thread that waits where it is told to; its clock is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.here = threading.Event()
        self.go_on = threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="test", daemon=True)
        self.pulse = ThreadPulse(self.thread, lambda: self.now)

    def _run(self) -> None:
        with self.pulse:
            self._stand_still()
            if self.error is not None:
                raise self.error

    def _stand_still(self) -> None:
        self.here.set()
        assert self.go_on.wait(10)

    @contextmanager
    def standing(self) -> Iterator[ThreadPulse]:
        self.thread.start()
        assert self.here.wait(10)
        yield self.pulse
        self.go_on.set()
        self.thread.join(10)


def test_a_round_that_takes_long_is_stuck_and_a_rest_is_not() -> None:
    worker = Worker()
    with worker.standing() as pulse:
        assert pulse.stuck_seconds == 0.0
        worker.now += 7.0
        assert pulse.stuck_seconds == 7.0 and not pulse.has_ended
        pulse.rest()
        worker.now += 100.0
        assert pulse.stuck_seconds == 0.0
        pulse.begin()
        worker.now += 2.0
        assert pulse.stuck_seconds == 2.0
    assert pulse.stuck_seconds == 0.0


def test_it_says_where_it_stands() -> None:
    worker = Worker()
    assert worker.pulse.standing() == "nowhere"
    with worker.standing() as pulse:
        assert pulse.standing().startswith("threading.")
    assert pulse.standing() == "nowhere"


def test_an_end_is_seen_and_an_error_kept() -> None:
    quiet, loud = Worker(), Worker()
    loud.error = ValueError("no such block")
    assert not quiet.pulse.has_ended, "it has not begun"
    for worker in (quiet, loud):
        with worker.standing() as pulse:
            assert not pulse.has_ended
        assert pulse.has_ended
    assert quiet.pulse.fault == ""
    assert loud.pulse.fault == "ValueError: no such block"
