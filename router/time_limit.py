"""Limits of time and memory for work in this process, whatever it loops over."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeIsUp(BaseException):
    """No Exception, so that nothing which is interrupted takes it for a failure of its own."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raises TimeIsUp inside the block. In the main thread only, and not one in the other.

    A single call into C is not interrupted: `die_after` is for that.
    """

    def strike(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def die_after(cpu_seconds: float) -> Iterator[None]:
    """The process is killed if the block takes longer, even if nobody watches it any more."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def bound_memory(num_bytes: int) -> None:
    """Beyond it allocations fail: in Python as MemoryError, in other code by the process's end."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, hard))
