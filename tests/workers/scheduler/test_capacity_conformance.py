"""Capacity scenarios with known outcomes: iteration counts, who runs when, positions, reuse.

Blocks of 10 tokens, unless said otherwise. Requests are written "prompt + answer".
"""

import pytest
from capacity_run import GNE, MAX, STATIC, WHOLE, Run, request, run, scheduler_of
from engine_parts import PEER, make_sequence

from segue.workers.scheduler.capacity import CapacityView
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.plan import Reason
from segue.workers.scheduler.rehearsal import Rehearsal
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Phase, Sequence


@pytest.mark.parametrize("policy", [GNE, MAX, STATIC])
def test_simple_should_fit(policy: str) -> None:
    done = run(scheduler_of(policy, 20), request(0, 10, 80), request(1, 10, 80))
    assert (len(done.iterations), done.changes()) == (80, {0: "01"})


@pytest.mark.parametrize("policy", [GNE, MAX, STATIC])
def test_simple_should_fit_in_chunks(policy: str) -> None:
    done = run(scheduler_of(policy, 20, chunk=20), request(0, 50, 40), request(1, 50, 40))
    assert (len(done.iterations), done.changes()) == (42, {0: "01"})
    assert [it.context["0"][1] for it in done.iterations[:3]] == [20, 40, 50]


def test_simple_does_not_fit_max_utilization() -> None:
    second = request(1, 10, 80)
    done = run(scheduler_of(MAX, 10), request(0, 10, 80), second)
    assert (len(done.iterations), done.changes()) == (119, {0: "01", 41: "0", 80: "1"})
    assert done.iterations[41].paused == ("1",)
    assert done.iterations[80].context["1"][1] == 51  # what was prompt and what was generated
    assert second.num_produced == 80 and second.num_pauses == 1


def test_landing_then_max_utilization() -> None:
    first = request(0, 10, 80, source=PEER)
    second = request(1, 10, 80, source=PEER)
    done = run(scheduler_of(MAX, 10), first, second)
    assert done.iterations[0].landed == ("0", "1")
    assert (len(done.iterations), done.changes()) == (119, {0: "01", 41: "0", 80: "1"})
    assert done.iterations[80].landed == ()  # what had landed is computed here, once it is gone
    assert done.iterations[80].context["1"][1] == 51


def test_priorities_choose_the_victim() -> None:
    done = run(scheduler_of(MAX, 10), request(0, 10, 80), request(1, 10, 80, priority=-1))
    assert (len(done.iterations), done.changes()) == (119, {0: "01", 41: "1", 80: "0"})


def test_max_utilization_in_chunks() -> None:
    scheduler = scheduler_of(MAX, 10, chunk=20)
    rehearsal = Rehearsal(scheduler)
    done = Run(rehearsal, {0: [request(0, 30, 60), request(1, 30, 60)]})

    def resume_whole(at: int) -> None:
        """In the reference only a first chunk was set by hand; what resumes is computed whole."""
        if at == 22:
            scheduler.budget = StepBudget(4 * WHOLE, WHOLE, 10)

    done.before_step = resume_whole
    done.to_the_end()
    assert (len(done.iterations), done.changes()) == (100, {0: "01", 22: "0", 61: "1"})


@pytest.mark.parametrize("policy", [MAX, GNE])
def test_chunks_of_a_context_need_all_its_blocks_at_once(policy: str) -> None:
    done = run(scheduler_of(policy, 10, chunk=40), request(0, 70, 20), request(1, 70, 20))
    assert (len(done.iterations), done.changes()) == (42, {0: "0", 21: "1"})


def test_drafts_take_room() -> None:
    first, second = request(0, 10, 80), request(1, 10, 80)
    first.num_drafts, second.num_drafts = 5, 10
    scheduler = scheduler_of(MAX, 10)
    drafts = DraftRehearsal(scheduler)
    for sequence in (first, second):
        scheduler.add(sequence)
    sets: dict[int, str] = {}
    at = 0
    while not drafts.is_over:
        now = drafts.step()
        if now != (list(sets.values()) or [""])[-1]:
            sets[at] = now
        at += 1
    assert (at, sets) == (129, {0: "01", 31: "0", 80: "1"})


class DraftRehearsal:
    """Every draft is rejected and its room given back, so all are asked in each iteration."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.running: list[Sequence] = []

    @property
    def is_over(self) -> bool:
        return not self.running and not self.scheduler.waiting

    def step(self) -> str:
        cache, policy = self.scheduler.cache, self.scheduler.settings.policy
        decision = policy.decide(
            CapacityView(
                cache=cache,
                max_num_seqs=8,
                waiting=tuple(self.scheduler.waiting),
                started=tuple(self.running),
                num_started=len(self.running),
                num_generating=len(self.running),
                growing=tuple(self.running),
            )
        )
        for sequence in decision.paused:
            self.running.remove(sequence)
            cache.pause(sequence)
            sequence.num_pauses += 1
            self.scheduler.add(sequence)
            sequence.phase = Phase.QUEUED
        for sequence in self.running:
            cache.extend(sequence, sequence.num_computed + 1)
            sequence.num_computed += 1
        for sequence in decision.admitted:
            self.scheduler.waiting.discard(sequence)
            assert cache.admit(sequence, total_tokens=0)
            sequence.num_computed = len(sequence.tokens)
            sequence.phase = Phase.GENERATION
            self.running.append(sequence)
        ran = "".join(sorted(s.request.request_id for s in self.running))
        for sequence in list(self.running):
            sequence.tokens.append(0)
            if sequence.num_produced == sequence.request.stop.max_tokens:
                self.running.remove(sequence)
                cache.free(sequence)
        return ran


def test_simple_does_not_fit_guaranteed_completion() -> None:
    done = run(scheduler_of(GNE, 10), request(0, 10, 80), request(1, 10, 80))
    assert (len(done.iterations), done.changes()) == (160, {0: "0", 80: "1"})
    assert done.iterations[0].held == {"1": Reason.NO_BLOCKS}


def test_guaranteed_completion_in_chunks() -> None:
    done = run(scheduler_of(GNE, 10, chunk=20), request(0, 30, 60), request(1, 30, 60))
    assert (len(done.iterations), done.changes()) == (122, {0: "0", 61: "1"})


def test_adding_new_requests_max_utilization() -> None:
    done = run(
        scheduler_of(MAX, 10, slots=4),
        request(0, 10, 80),
        request(1, 10, 80),
        later={10: [request(2, 10, 80), request(3, 10, 80)]},
    )
    assert done.changes() == {
        0: "01",
        10: "0123",
        21: "01",
        41: "0",
        80: "12",
        90: "1",
        119: "23",
        139: "2",
        178: "3",
    }
    assert len(done.iterations) == 227


def test_adding_new_requests_with_priorities() -> None:
    done = run(
        scheduler_of(MAX, 10, slots=4),
        request(0, 10, 80),
        request(1, 10, 80),
        later={10: [request(2, 10, 80, priority=-1), request(3, 10, 80, priority=-2)]},
    )
    assert done.changes() == {
        0: "01",
        10: "0123",
        21: "023",
        31: "23",
        51: "3",
        90: "2",  # 1 would fit, but 0 is before it and does not
        129: "01",
        139: "0",
        178: "1",
    }
    assert len(done.iterations) == 227


def test_surpassing_max_num_requests_with_priorities() -> None:
    done = run(
        scheduler_of(MAX, 20, slots=2),
        request(0, 10, 10),
        request(1, 10, 10),
        later={2: [request(2, 10, 10, priority=-1), request(3, 10, 10, priority=-2)]},
    )
    assert done.changes() == {0: "01", 2: "23", 12: "01"}
    assert set(done.iterations[2].paused) == {"0", "1"}
    assert len(done.iterations) == 20


@pytest.mark.parametrize(
    ("chunk", "prompt", "answer", "each"), [(WHOLE, 10, 80, 80), (20, 30, 60, 61)]
)
def test_adding_new_requests_guaranteed_completion(
    chunk: int, prompt: int, answer: int, each: int
) -> None:
    done = run(
        scheduler_of(GNE, 10, slots=4, chunk=chunk),
        request(0, prompt, answer),
        request(1, prompt, answer),
        later={10: [request(2, prompt, answer), request(3, prompt, answer)]},
    )
    assert len(done.iterations) == 4 * each
    assert done.changes() == {0: "0", each: "1", 2 * each: "2", 3 * each: "3"}


@pytest.mark.parametrize(("policy", "its", "reused"), [(MAX, 3, 4), (GNE, 3, 4), (STATIC, 2, 0)])
def test_duplicates_wait_for_the_first(policy: str, its: int, reused: int) -> None:
    scheduler = scheduler_of(policy, 20)
    prompt = list(range(21))
    done = run(scheduler, *(make_sequence(str(n), prompt, 2) for n in range(3)))
    assert len(done.iterations) == its
    if policy == STATIC:
        assert done.changes() == {0: "012"}
    else:
        assert done.iterations[0].ran == {"0"}
        assert done.iterations[0].held == dict.fromkeys("12", Reason.WAITING_FOR_REUSE)
        assert done.iterations[1].ran == {"0", "1", "2"}
    assert scheduler.cache.statistics.reused_full == reused


def test_a_duplicate_of_a_chunked_prompt_waits_for_all_of_it() -> None:
    scheduler = scheduler_of(GNE, 40, chunk=20)
    twins = [make_sequence(str(n), range(50), 40) for n in range(2)]
    done = run(scheduler, *twins, share_chunks=False)
    assert (done.start("1"), len(done.iterations)) == (3, 43)
    assert scheduler.cache.statistics.reused_full == 4


def test_with_shared_chunks_it_waits_less() -> None:
    """As the engine does it: a chunk's blocks can be shared as soon as they are computed."""
    scheduler = scheduler_of(GNE, 40, chunk=20)
    done = run(scheduler, *(make_sequence(str(n), range(50), 40) for n in range(2)))
    assert (done.start("1"), len(done.iterations)) == (2, 42)
    assert scheduler.cache.statistics.reused_full == 4


@pytest.mark.parametrize("policy", [GNE, MAX])
def test_delay_five_requests(policy: str) -> None:
    scheduler = scheduler_of(policy, 100)
    nested = list(range(100, 140))
    sequences = [
        request(0, 10, 80),
        request(1, 10, 80),
        make_sequence("2", nested[:11], 80),
        make_sequence("3", nested[:21], 80),
        make_sequence("4", nested[:31], 80),
    ]
    done = run(scheduler, *sequences)
    assert [done.start(str(n)) for n in range(5)] == [0, 0, 0, 1, 2]
    assert len(done.iterations) == 82
    assert scheduler.cache.statistics.reused_full == 3


def test_equal_prompts_with_different_salts_do_not_wait_for_each_other() -> None:
    scheduler = scheduler_of(GNE, 20)
    twins = [make_sequence(str(n), range(21), 2, salt=f"tenant-{n}") for n in range(2)]
    assert run(scheduler, *twins).changes() == {0: "01"}


def test_static_batch_is_filled_then_closed() -> None:
    done = run(
        scheduler_of(STATIC, 100, slots=2),
        request(0, 10, 80),
        request(1, 10, 40),
        request(2, 10, 80),
    )
    assert (len(done.iterations), done.changes()) == (160, {0: "01", 40: "0", 80: "2"})
    assert done.iterations[50].held == {"2": Reason.BATCH_CLOSED}


@pytest.mark.parametrize("policy", [GNE, MAX])
def test_idle_cached_blocks_give_no_credit(policy: str) -> None:
    """They are counted as free already: with a credit for them, more would be let in than fits."""
    scheduler = scheduler_of(policy, 10)
    run(scheduler, make_sequence("warm", range(50), 1))
    other = request(1, 10, 30)
    again = make_sequence("again", range(50), 20)
    done = run(scheduler, other, again)
    assert done.iterations[0].ran == ({"1"} if policy == GNE else {"1", "again"})
    assert {"1", "again"} <= {name for it in done.iterations for name in it.ran}


def test_who_pauses_others_does_not_wait_for_itself() -> None:
    """A context that is looked at again after a pause is not the one that it would wait for."""
    done = run(
        scheduler_of(MAX, 10, chunk=20),
        request(0, 70, 2),
        later={1: [request(1, 60, 2, priority=-1)]},
    )
    assert done.iterations[1].paused == ("0",)
    assert done.iterations[1].ran == {"1"}


@pytest.mark.parametrize("policy", [GNE, MAX])
def test_blocks_in_use_give_credit(policy: str) -> None:
    scheduler = scheduler_of(policy, 12)
    first = make_sequence("first", range(60), 20)
    twin = make_sequence("twin", range(60), 10)
    done = run(scheduler, first, later={1: [twin]})
    assert done.start("twin") == 1  # 8 + 7 blocks, 5 of them shared
