"""Places in the queue: priority, arrival, ageing, and what a paused sequence keeps."""

import pytest
from engine_parts import PEER, make_scheduler, make_sequence
from hypothesis import given
from hypothesis import strategies as st

from segue.workers.scheduler.plan import Reason
from segue.workers.scheduler.priority import RankedQueue, Ranking
from segue.workers.scheduler.rehearsal import Rehearsal
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Sequence


def queue_of(ranking: Ranking, *sequences: Sequence) -> list[str]:
    queue = RankedQueue()
    for sequence in sequences:
        ranking.place(sequence)
        queue.add(sequence)
    return [sequence.request.request_id for sequence in queue]


def test_reference_order_by_priority() -> None:
    """Lower goes first here; the reference counts from 0 to 1, the other way round."""
    arrivals = [5, 5, 6, 6, 6, 10, 3, 3, 3, 6, 10, 5]
    sequences = [make_sequence(str(n), [1], 1, priority=-p) for n, p in enumerate(arrivals)]
    order = queue_of(Ranking(None), *sequences)
    assert order == ["5", "10", "2", "3", "4", "9", "0", "1", "11", "6", "7", "8"]


def test_waiting_long_enough_outweighs_priority() -> None:
    def order(later_by: float) -> list[str]:
        patient = make_sequence("patient", [1], 1, priority=2, arrived=100.0)
        urgent = make_sequence("urgent", [1], 1, priority=0, arrived=100.0 + later_by)
        return queue_of(Ranking(30.0), patient, urgent)

    assert order(59.9) == ["urgent", "patient"]
    assert order(60.1) == ["patient", "urgent"]


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [("guaranteed_no_evict", False), ("static_batch", False), ("max_utilization", True)],
)
def test_only_max_utilization_pauses_who_runs_for_a_more_urgent_one(
    policy: str, pauses: bool
) -> None:
    scheduler = make_scheduler(max_num_seqs=1, policy=policy)
    scheduler.add(make_sequence("patient", [1], 8, priority=10))
    rehearsal = Rehearsal(scheduler)
    rehearsal.step()
    scheduler.add(make_sequence("urgent", [2], 3, priority=-10))
    ended = [name for _ in range(20) for name in rehearsal.step().ended]
    assert ended == (["urgent", "patient"] if pauses else ["patient", "urgent"])


@pytest.mark.parametrize("ageing", [None, 30.0])
def test_who_is_tried_again_stands_where_it_stood(ageing: float | None) -> None:
    late = make_sequence("late", [1], 1, arrived=99.0)
    again = make_sequence("again", [1], 1, attempt=2, arrived=5.0)
    assert queue_of(Ranking(ageing), late, again) == ["again", "late"]


def scheduler_with_a_blocked_head() -> Scheduler:
    """31 of 40 blocks are promised; `big`, most urgent of those that wait, needs 15."""
    scheduler = make_scheduler(num_blocks=40, max_tokens=64, chunk=64, ageing=30.0)
    scheduler.add(make_sequence("running", [1] * 4, 120))
    scheduler.schedule()
    scheduler.add(make_sequence("big", [2] * 20, 40, priority=-5, arrived=1.0))
    return scheduler


@pytest.mark.parametrize("kind", ["moves", "lands", "computed here"])
def test_who_holds_kv_passes_who_holds_none(kind: str) -> None:
    scheduler = scheduler_with_a_blocked_head()
    source = None if kind == "computed here" else PEER
    moving = make_sequence("m", [3] * 8, 16, source=source, arrived=100.0, moves=kind == "moves")
    scheduler.add(moving)
    scheduler.schedule()
    waits = {attempt.request_id: reason for attempt, reason in scheduler.held.items()}
    passed = Reason.WAITING_FOR_KV if kind == "moves" else Reason.BEHIND_HEAD
    assert waits == {"big": Reason.NO_BLOCKS, "m": passed}


def test_those_who_move_stand_in_order_among_themselves() -> None:
    scheduler = scheduler_with_a_blocked_head()
    for name, arrived in (("younger", 9.0), ("older", 5.0)):  # there is room for one
        scheduler.add(make_sequence(name, [3] * 8, 16, source=PEER, arrived=arrived, moves=True))
    scheduler.schedule()
    waits = {attempt.request_id: reason for attempt, reason in scheduler.held.items()}
    assert waits["older"] is Reason.WAITING_FOR_KV and waits["younger"] is Reason.NO_BLOCKS
    assert waits["big"] is Reason.BEHIND_HEAD


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_an_ageing_that_means_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="ageing_seconds"):
        Ranking(seconds)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 100)), min_size=1, max_size=20),
    st.data(),
)
def test_a_queue_is_sorted_and_finds_everybody(
    arrivals: list[tuple[int, float]], data: st.DataObject
) -> None:
    ranking, queue = Ranking(10.0), RankedQueue()
    sequences = [
        make_sequence(str(n), [1], 1, priority=priority, arrived=arrived)
        for n, (priority, arrived) in enumerate(arrivals)
    ]
    for sequence in sequences:
        ranking.place(sequence)
        assert sequence not in queue
        queue.add(sequence)
    gone = data.draw(st.sets(st.sampled_from(range(len(sequences)))))
    for number in gone:
        assert queue.discard(sequences[number])
        assert not queue.discard(sequences[number])
    left = [s for n, s in enumerate(sequences) if n not in gone]
    assert list(queue) == sorted(left, key=lambda s: s.order)
    assert all(s in queue for s in left) and len(queue) == len(left)


@given(st.permutations(range(6)), st.integers(0, 6))
def test_those_who_are_taken_are_gone_wherever_they_stood(order: list[int], count: int) -> None:
    ranking, queue = Ranking(None), RankedQueue()
    sequences = [make_sequence(str(n), [1], 1) for n in range(6)]
    for sequence in sequences:
        ranking.place(sequence)
        queue.add(sequence)
    taken = [sequences[n] for n in order[:count]]
    queue.take_all(taken)
    assert list(queue) == [s for s in sequences if s not in taken]
