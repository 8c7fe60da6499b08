"""Failed pairs pause for ever longer, up to a limit; a success or a new life wipes it out."""

from segue.cluster.identity import WorkerIdentity
from segue.kvtransfer.medium import Medium, MediumKind
from segue.kvtransfer.preflight import ProbeResult
from segue.workers.pair_book import LONGEST_PAUSE_SECONDS, MAX_PAIRS, PairBook

SOURCE = WorkerIdentity("prefill-0", "1")
GOOD = ProbeResult(Medium(MediumKind.RDMA, "rc_mlx5/mlx5_0:1", True), 2 * 10**6, 1e-3)


def test_the_pause_doubles_up_to_a_limit() -> None:
    book, now, pauses = PairBook(), 100.0, []
    for _ in range(12):
        book.note_failure(SOURCE, "why", None, now)
        (report,) = book.reports(now)
        pauses.append(report.retry_seconds)
        assert "why" in (book.refusal(SOURCE, now) or "")
        now += report.retry_seconds
        assert book.refusal(SOURCE, now) is None
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0] and set(pauses[6:]) == {LONGEST_PAUSE_SECONDS}


def test_success_ends_the_pauses() -> None:
    book = PairBook()
    book.note_failure(SOURCE, "why", GOOD, 0.0)
    book.note_failure(SOURCE, "why", GOOD, 1.0)
    book.note_success(SOURCE, GOOD, 3.0)
    (report,) = book.reports(5.0)
    assert (report.refusal, report.retry_seconds, report.seconds_ago) == ("", 0.0, 2.0)
    assert report.gigabytes_per_second == 2.0 and report.transport == "rdma"
    book.note_failure(SOURCE, "again", None, 6.0)
    assert book.reports(6.0)[0].retry_seconds == 1.0


def test_a_new_life_is_another_source() -> None:
    book = PairBook()
    book.note_failure(SOURCE, "why", None, 0.0)
    successor = WorkerIdentity(SOURCE.worker_id, "2")
    assert book.refusal(successor, 0.1) is None
    book.note_success(successor, GOOD, 0.2)
    assert [report.source for report in book.reports(0.2)] == [successor]


def test_the_book_is_bounded() -> None:
    book = PairBook()
    for number in range(MAX_PAIRS + 5):
        book.note_success(WorkerIdentity(f"prefill-{number}", "1"), GOOD, float(number))
    assert len(book.reports(1e3)) == MAX_PAIRS


def test_a_refusal_is_remembered_longer_than_any_success() -> None:
    """Forgotten, the pair would be tried again by the next request that it fails."""
    book = PairBook()
    book.note_failure(SOURCE, "why", None, 0.0)
    for number in range(MAX_PAIRS):
        book.note_success(WorkerIdentity(f"p{number}", "1"), GOOD, 0.5)
    assert "why" in (book.refusal(SOURCE, 0.5) or "")
    assert len(book.reports(1.0)) == MAX_PAIRS
    book.forget(SOURCE)
    assert book.refusal(SOURCE, 0.5) is None
