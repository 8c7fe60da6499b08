"""The two-level scheduler of one engine: capacity first, then the micro-batch.

    waiting --> landing ----------> generation --> removed
       ^  `---> context --------------^   |
       `------------'------- paused ------'

No clock, no tensor, no I/O: the engine says what time it is and what was computed. A step in which
nobody comes, goes, waits or begins a block touches no sequence and yields the same plan again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from segue.cluster.identity import AttemptId
from segue.workers.generation_batch import GenerationBatch
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.adapter_slots import AdapterSlots
from segue.workers.scheduler.capacity import CapacityDecision, CapacityPolicy, CapacityView
from segue.workers.scheduler.capacity_guaranteed_no_evict import GuaranteedNoEvict
from segue.workers.scheduler.delay_for_reuse import DelayForReuse
from segue.workers.scheduler.microbatch import MicroBatch, StepBudget, select
from segue.workers.scheduler.plan import Decision, Reason, StepPlan
from segue.workers.scheduler.priority import RankedQueue, Ranking
from segue.workers.sequence import Phase, Sequence

NO_CONTEXTS = MicroBatch()

# What is asked of every sequence: Python 3.11 takes long to look a member of an enum up.
QUEUED, CONTEXT, GENERATION = Phase.QUEUED, Phase.CONTEXT, Phase.GENERATION
ADMITTED, BEHIND_HEAD = Reason.ADMITTED, Reason.BEHIND_HEAD


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How sequences are ranked and admitted. `priority_ageing_seconds` None: no ageing.

    `max_adapters`: most different adapters among all that are admitted; None: any number.
    """

    max_num_seqs: int
    policy: CapacityPolicy = GuaranteedNoEvict()
    priority_ageing_seconds: float | None = None
    delay_for_reuse: bool = True
    max_adapters: int | None = None


class Scheduler:
    """Sequences wait, are admitted (landing, context or generation), and leave by `remove`."""

    def __init__(self, cache: KVCache, budget: StepBudget, settings: SchedulerSettings) -> None:
        if settings.max_num_seqs > budget.max_num_batched_tokens:
            raise ValueError("max_num_seqs must not exceed max_num_batched_tokens")
        if not budget.holds_all:
            raise ValueError("all rows of the generation batch run in every step, a token each")
        self.cache = cache
        self.budget = budget
        self.settings = settings
        self.generation = GenerationBatch(settings.max_num_seqs, budget.block_size)
        self.waiting = RankedQueue()
        self.context = RankedQueue()
        self.landing: dict[Sequence, None] = {}
        self.held: dict[AttemptId, Reason] = {}  # why each one that does not run waits
        self._ranking = Ranking(settings.priority_ageing_seconds)
        self._plan = StepPlan()
        self._unsettled = False  # something happened that may let somebody in
        self._seen_available = 0
        self._named: set[AttemptId] = set()  # held for a reason of their own
        self._fresh: list[AttemptId] = []  # began to wait since the last decision
        self._told: list[Decision] = []  # news from between the steps

    @property
    def max_num_seqs(self) -> int:
        return self.settings.max_num_seqs

    @property
    def num_admitted(self) -> int:
        return len(self.landing) + len(self.context) + len(self.generation)

    @property
    def has_work(self) -> bool:
        """True if a step would compute something."""
        return bool(self.context or self.generation)

    @property
    def stands_still(self) -> bool:
        """Somebody waits, and nothing is under way that could end: never meant to be. What lands
        and what readers hold have ends of their own."""
        idle = not (self.has_work or self.landing)
        return idle and bool(self.waiting) and not self.cache.pool.num_leased

    def sequences(self) -> list[Sequence]:
        """All that hold blocks."""
        return [*self.landing, *self.context, *self.generation.sequences]

    # -- what happens between steps ----------------------------------------------------------

    def expect(self, attempt: AttemptId) -> None:
        """A sequence will come once its decode worker grants a credit."""
        self.held[attempt] = Reason.WAITING_FOR_CREDIT
        self._told.append(Decision(attempt, Reason.WAITING_FOR_CREDIT))

    def rebound(self, attempt: AttemptId) -> None:
        """Another decode worker than the one that was asked first has granted the credit."""
        self._told.append(Decision(attempt, Reason.REBOUND))

    def add(self, sequence: Sequence) -> None:
        self._ranking.place(sequence)
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        attempt = sequence.attempt
        sequence.phase = QUEUED
        self.waiting.add(sequence)
        self.held[attempt] = BEHIND_HEAD
        self._fresh.append(attempt)
        self._unsettled = True

    def start_generation(self, *sequences: Sequence) -> None:
        """Their contexts are complete, computed here or landed, with a first token appended."""
        self.context.take_all([sequence for sequence in sequences if sequence.phase is CONTEXT])
        for sequence in sequences:
            if sequence.phase is not CONTEXT:
                self._withdraw(sequence)
            sequence.phase = GENERATION
        self._unsettled = True
        self.generation.join(*sequences)

    def halt(self, sequence: Sequence) -> None:
        """Between two steps: it generates no more, but keeps its blocks and its slot among those
        whose KV is on its way. `start_generation` takes it back."""
        self._set_aside(sequence, Phase.MIGRATING, Reason.MIGRATING)

    def await_last_token(self, sequence: Sequence) -> None:
        """A step under way computes its last token: it runs in none after that one, but keeps its
        blocks and its slot until `remove`."""
        self._set_aside(sequence, Phase.ENDING, Reason.ENDING)

    def _set_aside(self, sequence: Sequence, phase: Phase, reason: Reason) -> None:
        self.generation.leave(sequence)
        self._withdraw(sequence)
        sequence.phase = phase
        self.landing[sequence] = None
        self.held[sequence.attempt] = reason

    def remove(self, *sequences: Sequence) -> None:
        """Forget sequences wherever they are. Their blocks are the caller's business."""
        self.generation.leave(*sequences)
        for sequence in sequences:
            if sequence.phase is not GENERATION:
                self._withdraw(sequence)
        self._unsettled = True

    def note_answers(self, sequences: Iterable[Sequence]) -> None:
        """They have ended by themselves or by their limits: others may be expected to do so."""
        policy = self.settings.policy
        for sequence in sequences if policy.learns else ():
            if sequence.decode_peer is None:
                policy.note_answer(sequence.num_produced, sequence.request.stop.max_tokens)

    def forget(self, attempt: AttemptId) -> None:
        """The sequence that was expected does not come."""
        self.held.pop(attempt, None)

    def _withdraw(self, sequence: Sequence) -> None:
        """Take it out of the one group that it is in, if any, but for the generation batch."""
        self._unsettled = True
        phase = sequence.phase
        if phase is CONTEXT:
            self.context.discard(sequence)
        elif phase is not GENERATION:
            self.waiting.discard(sequence)
            self.landing.pop(sequence, None)
            self.held.pop(sequence.attempt, None)

    # -- a step ------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Pause and admit whom the policy says, and decide the next step."""
        growing = self.generation.beginning()
        decision = self._decide(growing)
        paused = decision.paused if decision else []
        for sequence in paused:
            self._pause(sequence)
        if paused:
            growing = [sequence for sequence in growing if sequence.row is not None]
        if growing:
            self.cache.grow(growing)
            self.generation.grow(*growing)
        news, self._told = self._told, []
        news += [Decision(s.attempt, Reason.PAUSED) for s in paused]
        reservations = self._admit(decision, news) if decision else []
        return self._planned(reservations, paused, news)

    def _planned(
        self, reservations: list[Sequence], paused: list[Sequence], news: list[Decision]
    ) -> StepPlan:
        generation = self.generation.sequences
        chunks = NO_CONTEXTS
        if self.context:
            chunks = select(self.context, generation, self.budget)
            self._unsettled = True  # what is computed can be shared
        elif not news and not self._plan.context and generation is self._plan.generation:
            if self._plan.decisions or self._plan.reservations or self._plan.paused:
                self._plan = StepPlan(generation=generation, num_generation_tokens=len(generation))
            return self._plan
        self._plan = StepPlan(
            chunks.context,
            generation,
            tuple(reservations),
            tuple(paused),
            (*news, *chunks.decisions),
            len(generation),
        )
        return self._plan

    def _decide(self, growing: list[Sequence]) -> CapacityDecision | None:
        """None: nothing happened that could change who is admitted."""
        policy, cache = self.settings.policy, self.cache
        available = cache.pool.num_available - cache.promised_blocks
        stirred = self._unsettled or available != self._seen_available
        self._seen_available = available
        if not self.waiting:
            self._fresh.clear()
        if not (self.waiting and stirred) and not (growing and policy.may_pause(growing, cache)):
            return None
        self._unsettled = False
        delay = None
        if self.waiting and self.settings.delay_for_reuse and policy.delays_for_reuse:
            ran = [item.sequence for item in self._plan.context]
            delay = DelayForReuse(cache, [s for s in ran if s in self.context])
        return policy.decide(
            CapacityView(
                cache=cache,
                max_num_seqs=self.max_num_seqs,
                waiting=self.waiting.in_order(),
                started=self._pausable() if policy.pauses else (),
                num_started=len(self.context) + len(self.generation),
                num_generating=len(self.generation),
                num_landing=len(self.landing),
                growing=growing,
                delay=delay,
                adapters=self._adapter_slots(),
            )
        )

    def _pausable(self) -> tuple[Sequence, ...]:
        contexts = [sequence for sequence in self.context if sequence.can_be_paused]
        return (*contexts, *self.generation.sequences)

    def _adapter_slots(self) -> AdapterSlots | None:
        count = self.settings.max_adapters
        return None if count is None else AdapterSlots(count, self.sequences())

    def _pause(self, sequence: Sequence) -> None:
        """It keeps its tokens and its place; its KV is published and can be found again."""
        self.remove(sequence)
        self.cache.pause(sequence)
        sequence.num_pauses += 1
        self._wait(sequence)

    def _admit(self, decision: CapacityDecision, news: list[Decision]) -> list[Sequence]:
        """Returns those that will land. One that does not fit after all goes on waiting."""
        policy, cache, matches = self.settings.policy, self.cache, decision.matches
        counts = cache.statistics
        evicted = -counts.forgotten - counts.offloaded
        fitted = cache.admit_all(
            (s, policy.tokens_to_promise(s, cache), s.lands, matches.get(s))
            for s in decision.admitted
        )
        evicted += counts.forgotten + counts.offloaded
        held = decision.held
        if fitted < len(decision.admitted):
            held = [Decision(s.attempt, Reason.NO_BLOCKS) for s in decision.admitted[fitted:]]
        admitted = decision.admitted[:fitted]
        reservations: list[Sequence] = []
        self.waiting.take_all(admitted)
        for sequence in admitted:
            attempt = sequence.attempt
            self.held.pop(attempt, None)
            if sequence.num_pauses:
                news.append(Decision(attempt, Reason.RESUMED))
            else:
                news.append(Decision(attempt, ADMITTED))
                sequence.num_reused = sequence.num_cached
            if sequence.lands:
                sequence.phase = Phase.LANDING
                self.landing[sequence] = None
                self.held[attempt] = Reason.WAITING_FOR_KV
                news.append(Decision(attempt, Reason.WAITING_FOR_KV))
                reservations.append(sequence)
            else:
                sequence.phase = CONTEXT
                self.context.add(sequence)
        if evicted:
            attempt = admitted[-1].attempt
            news.append(Decision(attempt, Reason.EVICTED, None, evicted))
        self._name(held, news)
        return reservations

    def _name(self, held: list[Decision], news: list[Decision]) -> None:
        """Say of those that were looked at why they wait; all others are behind one of them."""
        named = {decision.attempt for decision in held}
        for attempt in self._named - named:
            if attempt in self.held:
                self.held[attempt] = Reason.BEHIND_HEAD
        for decision in held:
            if self.held.get(decision.attempt) is not decision.reason:
                news.append(decision)
            self.held[decision.attempt] = decision.reason
        self._named = named
        for attempt in self._fresh:
            if self.held.get(attempt) is BEHIND_HEAD:
                news.append(Decision(attempt, Reason.BEHIND_HEAD))
        self._fresh.clear()
