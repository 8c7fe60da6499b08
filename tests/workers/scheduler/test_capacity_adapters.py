"""Adapters in the capacity policies: who runs together, who is passed, and for how long.

Requests are written "prompt + answer".
"""

import pytest
from capacity_run import GNE, MAX, STATIC, request, run, scheduler_of
from engine_parts import make_sequence

from segue.workers.scheduler.plan import Reason
from segue.workers.sequence import Sequence


def of_adapters() -> list[Sequence]:
    return [request(n, 10, 50, adapter=name) for n, name in enumerate(("1234", "5678", "1234"))]


@pytest.mark.parametrize("policy", [GNE, MAX, STATIC])
def test_adapters_fit(policy: str) -> None:
    done = run(scheduler_of(policy, 21, slots=4, adapters=2), *of_adapters())
    assert (len(done.iterations), done.changes()) == (50, {0: "012"})


@pytest.mark.parametrize("policy", [GNE, STATIC])
def test_without_an_adapter_slot_one_is_passed(policy: str) -> None:
    done = run(scheduler_of(policy, 21, slots=4, adapters=1), *of_adapters())
    assert (len(done.iterations), done.changes()) == (100, {0: "02", 50: "1"})
    if policy == GNE:
        assert done.iterations[0].held == {"1": Reason.NO_ADAPTER_SLOT}
        assert ("1", "no_adapter_slot (1 of 2)") in done.iterations[0].news


def test_max_utilization_lets_nobody_pass_for_an_adapter() -> None:
    done = run(scheduler_of(MAX, 21, slots=4, adapters=1), *of_adapters())
    assert (len(done.iterations), done.changes()) == (150, {0: "0", 50: "1", 100: "2"})
    assert done.iterations[0].held == {"1": Reason.NO_ADAPTER_SLOT, "2": Reason.BEHIND_HEAD}


def test_whoever_has_none_needs_no_adapter_slot() -> None:
    first, second, third = of_adapters()
    second.adapter, third.adapter = None, "5678"
    done = run(scheduler_of(GNE, 21, slots=4, adapters=1), first, second, third)
    assert done.changes() == {0: "01", 50: "2"}


def test_a_higher_priority_takes_the_adapter_slot_under_max_utilization() -> None:
    urgent = request(1, 10, 50, adapter="5678", priority=-1)
    first = request(0, 10, 50, adapter="1234")
    done = run(scheduler_of(MAX, 21, adapters=1), first, later={5: [urgent]})
    assert done.changes() == {0: "0", 5: "1", 55: "0"}
    assert done.iterations[5].paused == ("0",)


def test_an_adapter_is_not_kept_waiting_by_all_that_come_later() -> None:
    """It is passed by the next `max_num_seqs` arrivals only, however many use what is loaded."""
    scheduler = scheduler_of(GNE, 100, slots=4, adapters=1)
    other = request(99, 10, 5, adapter="5678")
    crowd = {at: [request(at, 10, 5, adapter="1234")] for at in range(2, 60)}
    done = run(scheduler, request(0, 10, 5, adapter="1234"), later={1: [other], **crowd})
    passed = [n for n in range(2, 60) if done.start(str(n)) < done.start("99")]
    assert passed == [2, 3, 4, 5]


def test_equal_prompts_with_different_adapters_share_nothing() -> None:
    scheduler = scheduler_of(GNE, 40)
    twins = [make_sequence(str(n), range(21), 2, adapter=a) for n, a in enumerate((None, "a", "b"))]
    assert run(scheduler, *twins).changes() == {0: "012"}
    again = make_sequence("3", range(21), 2, adapter="a")
    run(scheduler, again)
    assert scheduler.cache.statistics.reused_full == 2  # both of its own kind
    assert again.num_reused == 20
