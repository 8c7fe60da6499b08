"""A full worker is asked by one request at a time, until it takes one."""

from segue.cluster.identity import WorkerIdentity
from segue.router.busy_workers import MAX_REMEMBERED, PAUSE_SECONDS, BusyWorkers

FULL, OTHER = WorkerIdentity("decode-0", "a"), WorkerIdentity("decode-1", "b")


def test_one_request_finds_out_for_all() -> None:
    busy = BusyWorkers()
    busy.refused(FULL, 10.0)
    assert not busy.may_be_asked(FULL, 10.0) and busy.may_be_asked(OTHER, 10.0)
    later = 10.0 + PAUSE_SECONDS
    assert busy.may_be_asked(FULL, later)
    busy.asked(FULL, later)
    assert not busy.may_be_asked(FULL, later + PAUSE_SECONDS / 2)
    assert busy.may_be_asked(FULL, later + PAUSE_SECONDS), "if nothing is heard of that one"
    busy.took(FULL)
    busy.asked(FULL, later)
    assert busy.may_be_asked(FULL, later), "it has room: all may come"


def test_what_it_remembers_is_bounded() -> None:
    busy = BusyWorkers()
    for number in range(MAX_REMEMBERED + 1):
        busy.refused(WorkerIdentity(f"d{number}", "a"), 1.0)
    assert busy.may_be_asked(WorkerIdentity("d0", "a"), 1.0)
    assert not busy.may_be_asked(WorkerIdentity("d1", "a"), 1.0)
