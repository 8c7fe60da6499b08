"""Capacity scenarios with known outcomes: iteration counts, who runs when, positions, reuse.

Blocks of 10 tokens, unless said otherwise. Requests are written "prompt + answer".
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from engine_parts import PEER, make_scheduler, make_sequence

from segue.workers.scheduler.capacity import CapacityView
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.plan import Reason
from segue.workers.scheduler.rehearsal import Iteration, Rehearsal
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Phase, Sequence

GNE, MAX, STATIC = "guaranteed_no_evict", "max_utilization", "static_batch"
WHOLE = 1000


def scheduler_of(
    policy: str,
    num_blocks: int,
    slots: int = 8,
    chunk: int = WHOLE,
    reuse: bool = True,
    adapters: int | None = None,
) -> Scheduler:
    return make_scheduler(
        num_blocks,
        10,
        max_num_seqs=slots,
        max_tokens=4 * WHOLE,
        chunk=chunk,
        reuse=reuse,
        policy=policy,
        max_adapters=adapters,
    )


def request(number: int, prompt: int, answer: int, **other: object) -> Sequence:
    """No two share a prefix."""
    return make_sequence(str(number), [number + 1] * prompt, answer, **other)  # type: ignore[arg-type]


@dataclass
class Run:
    rehearsal: Rehearsal
    arrivals: dict[int, list[Sequence]]
    before_step: Callable[[int], None] = lambda _: None
    iterations: list[Iteration] = field(default_factory=list)

    def to_the_end(self) -> "Run":
        at = 0
        while not self.rehearsal.is_over or self.arrivals:
            for sequence in self.arrivals.pop(at, ()):
                self.rehearsal.scheduler.add(sequence)
            self.before_step(at)
            self.iterations.append(self.rehearsal.step())
            assert self.iterations[-1].ran, f"iteration {at}: somebody waits and nobody runs"
            scheduler = self.rehearsal.scheduler
            scheduler.cache.check_integrity(scheduler.sequences())
            at += 1
            assert at < 500
        return self

    def changes(self) -> dict[int, str]:
        """Who runs, at each iteration where that changes."""
        found: dict[int, str] = {}
        before = ""
        for at, iteration in enumerate(self.iterations):
            now = "".join(sorted(iteration.ran))
            if now != before:
                found[at] = before = now
        return found

    def start(self, name: str) -> int:
        return next(at for at, it in enumerate(self.iterations) if name in it.ran)


def run(
    scheduler: Scheduler,
    *sequences: Sequence,
    later: dict[int, list[Sequence]] | None = None,
    share_chunks: bool = True,
) -> Run:
    arrivals = {0: list(sequences), **(later or {})}
    return Run(Rehearsal(scheduler, share_chunks=share_chunks), arrivals).to_the_end()


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
