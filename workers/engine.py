"""The engine loop: one thread that schedules, runs, samples and applies, step after step.

Everything else reaches it through `post` and `call`; everything it has to say leaves in one
StepOutcome a step, and in one more for each group of layers that is told meanwhile. It is the only
thread that touches scheduler, KV-cache and sequences.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from segue.cluster.errors import FailureKind
from segue.cluster.handoff import Announcement, Failure, TokenDelta
from segue.cluster.identity import AttemptId
from segue.cluster.request import FinishReason
from segue.cluster.thread_pulse import ThreadPulse
from segue.workers.engine_inbox import EngineInbox
from segue.workers.generation_batch import Ids
from segue.workers.handoffs import Handoffs
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.plan_recorder import PlanRecorder
from segue.workers.scheduler.plan import Scheduled, StepPlan
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Phase, Sequence
from segue.workers.step_execution import LayerNews, StepExecution, StepResult
from segue.workers.step_outcome import Ended, GeneratedTokens, StepOutcome

logger = logging.getLogger(__name__)

T = TypeVar("T")
TICK_SECONDS = 1.0


@dataclass(slots=True)
class EngineCounters:
    steps: int = 0
    context_tokens: int = 0
    generated_tokens: int = 0
    pauses: int = 0
    failed_commands: int = 0
    failed_steps: int = 0
    last_progress: float = 0.0  # monotonic; of the last step, or of the last moment without work


class Engine:
    """Start with `start`; `on_outcome` is called in the engine thread, after each step or in it."""

    def __init__(
        self,
        scheduler: Scheduler,
        execution: StepExecution,
        on_outcome: Callable[[StepOutcome], None],
        clock: Callable[[], float] = time.monotonic,
        recorder: PlanRecorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.cache: KVCache = scheduler.cache
        self.counters = EngineCounters(last_progress=clock())
        self.recorder = recorder or PlanRecorder(0)
        self._execution = execution
        self._on_outcome = on_outcome
        self._clock = clock
        self._sequences: dict[AttemptId, Sequence] = {}
        self._handoffs = Handoffs(self.cache, execution.checksums)
        self._outcome = StepOutcome()
        self._wake = threading.Condition()
        self._inbox = EngineInbox(self._wake)
        self._stopping = False
        self._next_tick = clock() + TICK_SECONDS
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.pulse = ThreadPulse(self._thread, clock)

    # -- from other threads ------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def post(self, action: Callable[[], object], concerns: Sequence | None = None) -> None:
        """Run `action` in the engine thread before the next step. Raises it, `concerns` ends."""
        self._inbox.post(action, concerns)

    def call(self, action: Callable[[], T]) -> Future[T]:
        """As `post`, with the result or the exception. Who stops waiting does not undo it.

        Whoever gets the result may do with its blocks as it likes, let a peer write into them for
        one: every copy that was ordered until then has been carried out.
        """
        return self._inbox.call(action)

    # -- in the engine thread, by post -------------------------------------------------------

    def add(self, sequence: Sequence, num_known_blocks: int = 0) -> None:
        """Queue a sequence. The first `num_known_blocks` blocks need not be handed off."""
        if sequence.attempt in self._sequences:  # its blocks may still be landing: leave it alone
            message = f"{sequence.attempt} is known already"
            failure = Failure(FailureKind.REFUSED, message, retryable=False)
            self._outcome.ended.append(Ended(sequence, None, failure))
            return
        self._sequences[sequence.attempt] = sequence
        if sequence.decode_peer is not None:
            self._handoffs.begin(sequence.attempt, num_known_blocks)
        if not self.cache.can_ever_fit(sequence):
            tokens = self.cache.final_tokens(sequence)
            need, have = self.cache.blocks_for(tokens), self.cache.pool.num_blocks
            message = f"{tokens} tokens need {need} KV blocks, the whole cache has {have}"
            self._fail(sequence, Failure(FailureKind.REFUSED, message, retryable=False))
            return
        self.scheduler.add(sequence)

    def expect(self, attempt: AttemptId) -> None:
        """A sequence will be added once it has a credit; `drop` says that it will not."""
        if attempt not in self._sequences:
            self.scheduler.expect(attempt)

    def drop(self, sequence: Sequence) -> bool:
        """Take a sequence out without a word. False if it is not here (any more)."""
        if self._sequences.get(sequence.attempt) is not sequence:
            self.scheduler.forget(sequence.attempt)
            return False
        self._leave(sequence)
        return True

    def land(self, sequence: Sequence, last: Announcement) -> bool:
        """The context's KV is verified: begin to generate behind its first token.

        The first token is reported again, and so is what a request that moves has produced since
        its assignment, so that the gateway needs nothing from the source any more. False: the
        attempt has ended.
        """
        if self._sequences.get(sequence.attempt) is not sequence:
            return False
        if sequence.phase is not Phase.LANDING or last.first_token is None:
            return False
        if last.token_ids:
            told = TokenDelta(sequence.attempt, len(sequence.tokens), last.token_ids)
            sequence.tokens.extend(last.token_ids)
            self._outcome.first_tokens.append((sequence.assignment.gateway_id, told))
        self.cache.land(sequence)
        sequence.num_reused = last.cached_tokens
        if not self._is_over(sequence, last.first_token):
            self.scheduler.start_generation(sequence)
        return True

    def holds(self, sequence: Sequence) -> bool:
        return self._sequences.get(sequence.attempt) is sequence

    def checksums(self, block_ids: tuple[int, ...]) -> tuple[int, ...]:
        return self._execution.checksums(block_ids)

    def end_lease(self, block_ids: tuple[int, ...]) -> None:
        self.cache.pool.end_lease(block_ids)

    # -- the loop ----------------------------------------------------------------------------

    def _run(self) -> None:
        with self.pulse:
            while self._wait_for_work():
                self.run_once()

    def run_once(self) -> None:
        """One round: what was posted, one step, and what they have to say. The thread does this
        over and over; a test or a benchmark may do it instead of starting one."""
        self._obey()
        now = self._clock()
        if now >= self._next_tick:
            self._expire(now)
            self._next_tick = now + TICK_SECONDS
        try:
            self._step(now)
        except Exception as error:  # a defect in the loop itself must not freeze everybody
            logger.exception("engine step failed; its sequences are ended")
            self.counters.failed_steps += 1
            for sequence in list(self._sequences.values()):
                if sequence.phase in (Phase.CONTEXT, Phase.GENERATION):
                    self._fail(sequence, Failure(FailureKind.COMPUTE, repr(error)))
        self._emit()

    def _wait_for_work(self) -> bool:
        with self._wake:
            if not (self._inbox or self.scheduler.has_work or self._stopping):
                self.pulse.rest()
                self._wake.wait(TICK_SECONDS if self._sequences else None)
                if not self.scheduler.stands_still:
                    self.counters.last_progress = self._clock()
            self.pulse.begin()
            return not self._stopping

    def _obey(self) -> None:
        for action, sequence in self._inbox.commands():
            try:
                action()
            except Exception as error:
                logger.exception("an engine command failed")
                self.counters.failed_commands += 1
                if sequence is not None:
                    self._lose(sequence, Failure(FailureKind.COMPUTE, repr(error)))
        if answers := self._inbox.answers():
            self._answer(answers)

    def _answer(self, answers: list[Callable[[], None]]) -> None:
        """Tell the results of calls, behind all copies that they and others have ordered."""
        try:
            self._copy_blocks()
        except Exception:  # those it struck have been told; whose call it was is told as it went
            logger.exception("block copies failed")
            self.counters.failed_steps += 1
        for answer in answers:
            answer()

    def _expire(self, now: float) -> None:
        for sequence in list(self._sequences.values()):
            # What is landing is ended by the decode role, when its reads are terminal.
            if sequence.deadline <= now and sequence.phase is not Phase.LANDING:
                message = f"deadline reached while in {sequence.phase}"
                self._fail(sequence, Failure(FailureKind.DEADLINE, message, retryable=False))

    def _step(self, now: float) -> None:
        self.cache.refresh(now)
        plan = self.scheduler.schedule()
        self._copy_blocks(plan.reservations)
        self._outcome.granted.extend(plan.reservations)
        self.counters.pauses += len(plan.paused)
        began = time.time()
        if plan.is_empty:
            if plan.decisions:
                self.recorder.record(plan, began, began, self.cache.pool.num_available)
            return
        self.recorder.begin(plan, began)
        try:
            result = self._execution.run(plan, self.scheduler.generation, self._layer_news(plan))
        finally:
            self.recorder.record(plan, began, time.time(), self.cache.pool.num_available)
        self._apply(plan, result)
        counters = self.counters
        counters.steps += 1
        counters.context_tokens += plan.num_context_tokens
        counters.last_progress = self._clock()

    def _copy_blocks(self, granted: Iterable[Sequence] = ()) -> None:
        """Before the step computes, and before anybody may write into a block from outside.

        If that fails, nobody knows what the blocks of these copies hold, nor whether those who
        wait for a grant would still get it.
        """
        copies = self.cache.take_copies()
        if not copies:
            return
        try:
            self._execution.copy_blocks(copies)
        except Exception as error:
            spoilt = self.cache.abandon_copies(list(self._sequences.values()))
            for sequence in dict.fromkeys((*spoilt, *granted)):
                self._fail(sequence, Failure(FailureKind.COMPUTE, repr(error)))
            raise
        self.cache.end_copies()

    def _apply(self, plan: StepPlan, result: StepResult) -> None:
        """Rows first: a context that ends in this step joins them for the next one."""
        generated = self.scheduler.generation.without(result.failures, result.generated)
        # If it is everybody's, it is hardly the requests' fault: another worker may succeed.
        everybody = 1 < len(result.failures) == len(plan.context) + plan.num_generation_tokens
        for sequence, error in result.failures.items():
            self._fail(sequence, Failure(FailureKind.COMPUTE, error, retryable=everybody))
        if len(generated):
            self._generated(generated)
        starting: list[Sequence] = []
        for item in plan.context:
            sequence, start, num_tokens = item
            if sequence in result.failures:
                continue
            sequence.num_computed = start + num_tokens
            self.cache.publish(sequence)
            token = result.tokens.get(sequence)
            if sequence.decode_peer is not None:
                self._hand_off(item, token, result.repeated)
            elif token is not None and not self._is_over(sequence, token):
                starting.append(sequence)
        if starting:
            self.scheduler.start_generation(*starting)

    def _generated(self, tokens: Ids) -> None:
        """One more token of every row; only those whose last one it was are looked at."""
        rows = self.scheduler.generation
        finishes = rows.advance(tokens)
        self._outcome.generated = GeneratedTokens(
            rows.sequences, rows.positions[: len(rows)].copy(), tokens, finishes
        )
        self.counters.generated_tokens += len(rows)
        if finishes:
            self._leave(*finishes)
            self.scheduler.note_answers(finishes)
            self._outcome.ended += [
                Ended(sequence, finish) for sequence, finish in finishes.items()
            ]

    def _layer_news(self, plan: StepPlan) -> LayerNews | None:
        """What the runner tells while it computes the end of contexts that are handed off."""
        ending = [
            item for item in plan.context if item.sequence.decode_peer is not None and item.samples
        ]

        def tell(num_layers: int) -> None:
            parts = [self._handoffs.part(item, num_layers) for item in ending]
            self._outcome.chunks += [part for part in parts if part is not None]
            self._emit()

        return tell if ending else None

    def _hand_off(self, item: Scheduled, token: int | None, repeated: bool) -> None:
        sequence = item.sequence
        finish = None
        if token is not None:
            finish = self._report(sequence, token)
        if finish is not None:
            self._end(sequence, finish)
            return
        chunk = self._handoffs.chunk(item, token, repeated=repeated)
        if chunk is not None:
            self._outcome.chunks.append(chunk)
        if token is not None:
            self._leave(sequence)

    def _is_over(self, sequence: Sequence, token: int) -> bool:
        """Append the token behind a context that was computed here, or landed. True: it ended."""
        finish = self._report(sequence, token)
        if finish is not None:
            self._end(sequence, finish)
        return finish is not None

    def _report(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Also the token behind a context that was computed again after a pause."""
        position = len(sequence.tokens)
        sequence.tokens.append(token)
        finish = sequence.request.stop.check(position + 1 - sequence.num_prompt, token)
        cached = 0
        if sequence.num_reused and position == sequence.num_context:
            cached = min(sequence.num_reused, sequence.num_prompt)
        delta = TokenDelta(sequence.attempt, position, (token,), finish, None, cached)
        self._outcome.first_tokens.append((sequence.assignment.gateway_id, delta))
        self.counters.generated_tokens += 1
        return finish

    # -- ends --------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, finish: FinishReason) -> None:
        self._leave(sequence)
        self.scheduler.note_answers((sequence,))
        self._outcome.ended.append(Ended(sequence, finish))

    def _fail(self, sequence: Sequence, failure: Failure) -> None:
        self._leave(sequence)
        self._outcome.ended.append(Ended(sequence, None, failure))

    def _lose(self, sequence: Sequence, failure: Failure) -> None:
        """It can be anywhere, or nowhere: whoever waits for it is told."""
        if self.holds(sequence):
            self._fail(sequence, failure)
        else:
            self._outcome.ended.append(Ended(sequence, None, failure))

    def _leave(self, *sequences: Sequence) -> None:
        """The one way out: scheduler and cache forget the sequences."""
        self.scheduler.remove(*sequences)
        self._handoffs.forget(sequences)
        ended = Phase.ENDED
        for sequence in sequences:
            del self._sequences[sequence.attempt]
            sequence.phase = ended
        self.cache.free(*sequences)

    def _emit(self) -> None:
        if self._outcome:
            outcome, self._outcome = self._outcome, StepOutcome()
            self._on_outcome(outcome)
