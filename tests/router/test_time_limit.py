"""Limits on work in a process: what Python runs is interrupted, what C runs ends the process."""

import signal
import subprocess
import sys
import time

import pytest

from segue.router.time_limit import TimeIsUp, interrupted_after


def test_a_loop_is_interrupted() -> None:
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(TimeIsUp), interrupted_after(0.05):
        while True:
            try:
                [i for i in range(1000)]
            except Exception:  # it is none
                break
    assert time.monotonic() - began < 5
    assert signal.getsignal(signal.SIGALRM) == before


def test_work_that_is_done_in_time_is_let_be() -> None:
    with interrupted_after(30):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("work", "code"), [("3 ** 10 ** 9", -signal.SIGPROF), ("1", 0)], ids=["endless", "short"]
)
def test_a_process_that_nobody_watches_ends_itself(work: str, code: int) -> None:
    limit = "from segue.router.time_limit import die_after"
    script = f"{limit}\nn = 9\nwith die_after(0.2): {work.replace('9', 'n')}"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == code
