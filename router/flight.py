"""One attempt under way: which workers have it, and its move from one to another.

It hears the workers when they speak, whether or not its client reads: what they have said is kept
for the journey, but what it means for who has the attempt is true at once.

A move adds a second attempt, on the target, to the one on the source. The first token that the
target tells, or the source's word that it has let go, settles it: from then on only the target's
attempt counts. Until then only the source's does, and what happens to the target is no failure.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.fleet import WorkerView
from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.router.links import Event, LinkLost, WorkerLinks
from segue.router.policy import Binding, Load

logger = logging.getLogger(__name__)

# A worker that refused for these reasons has not touched the request: that is no try of it.
UNTRIED = (FailureKind.DRAINING, FailureKind.BUSY)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the journey must take in. `culprit`: whom to avoid next, if it failed."""

    delta: TokenDelta
    culprit: WorkerIdentity


@dataclass(slots=True, eq=False)
class FlightMove:
    """`landed` resolves to the pause between two new tokens, in seconds; None: none came."""

    target: WorkerView
    attempt: AttemptId
    settled: bool = False  # the target has it
    failure: AttemptFailed | None = None  # of the target, before it told a token
    landed: asyncio.Future[float | None] = field(default_factory=asyncio.Future)


class Flight:
    """Reserves load when it begins and gives it back when it ends."""

    def __init__(
        self,
        links: WorkerLinks,
        load: Load,
        attempt: AttemptId,
        binding: Binding,
        context_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._load = load
        self._clock = clock
        self.attempt = attempt
        self.binding = binding
        self.move: FlightMove | None = None
        self.rebinding: WorkerView | None = None  # asked whether it has room for the answer
        self.asked: set[WorkerIdentity] = set()  # all that ever were
        self._bound = binding.decode is None  # the writer will not be changed before it has begun
        self._landing: list[FlightMove] = []  # settled; the first new token is still to come
        self._context_tokens = context_tokens  # 0: read
        self._handed_over = binding.decode is None  # no prefill worker is needed any more
        self._num_told = 0  # where the newest token that was told ends
        self._told_at = clock()
        self._attempts = [(attempt, w.identity) for w in binding.workers]  # all that ever began
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()  # bounded by the attempt's tokens
        self._is_over = False  # nothing that follows is of interest
        links.open_inbox(attempt, [w.identity for w in binding.workers], self.hear)
        load.begin(binding, context_tokens)

    @property
    def writer(self) -> WorkerIdentity:
        return (self.binding.decode or self.binding.prefill).identity

    @property
    def generates(self) -> bool:
        """The writer has told a token itself: it can be moved."""
        return self._handed_over and not self._context_tokens

    @property
    def may_be_rebound(self) -> bool:
        """For all that is known it waits for a credit."""
        return not self._bound and self.rebinding is None and self._context_tokens > 0

    def end(self, *, finished: bool) -> None:
        """Leaves nothing behind: inboxes, load, work that nobody wants."""
        if self.move is not None:
            self.give_up_move(self.move)
        if self.rebinding is not None:
            self.give_up_rebinding(self.rebinding, for_good=True)
        self._end_landing(None)
        self._is_over = True
        self._links.close_inbox(self.attempt)
        self._end_context()
        self._load.end_answer(self.binding)
        if not finished:
            for attempt, worker in self._attempts:
                self._links.abort(attempt, [worker])

    # -- what the workers say ----------------------------------------------------------------

    def hear(self, event: Event) -> None:
        if self._is_over:
            return
        try:
            if isinstance(event, LinkLost):
                self._hear_of_loss(event)
            else:
                self._hear_delta(event.worker, event.delta)
        except Exception as error:  # a defect, which is no other attempt's
            logger.exception("what %s said of %s failed", event.worker, self.attempt)
            self._say(AttemptFailed(FailureKind.WORKER_LOST, repr(error)), event.worker)

    def _hear_of_loss(self, event: LinkLost) -> None:
        error = AttemptFailed(FailureKind.WORKER_LOST, f"{event.worker}: {event.reason}")
        if event.worker in self._needed():
            self._say(error, event.worker)
        elif self.move is not None and event.worker == self.move.target.identity:
            self._target_failed(self.move, error)

    def _hear_delta(self, worker: WorkerIdentity, delta: TokenDelta) -> None:
        move = self.move
        if self.rebinding is not None:
            self._hear_of_rebinding(self.rebinding, worker)
        if move is not None and delta.attempt == move.attempt:
            if delta.failure is not None and not delta.token_ids:
                self._target_failed(move, delta.failure.to_error())
                return
            self.settle_move(move)
        elif delta.attempt != self.attempt or worker not in self._needed():
            return
        if self.binding.decode is not None and worker == self.binding.decode.identity:
            self._handed_over = True
        if delta.token_ids:
            self._end_context()
            self._note_tokens(delta.position + len(delta.token_ids))
        self._keep(worker, delta)

    def _keep(self, worker: WorkerIdentity, delta: TokenDelta) -> None:
        culprit = worker
        if delta.failure is not None:
            culprit = _culprit(self.binding, worker, delta.failure.kind)
            for move in self._landing:
                move.failure = delta.failure.to_error()
        self._is_over = delta.finish is not None or delta.failure is not None
        self.heard.put_nowait(Heard(delta, culprit))

    def _note_tokens(self, end: int) -> None:
        """Of what the target of a move repeats nothing is new."""
        if end > self._num_told:
            now = self._clock()
            self._end_landing(now - self._told_at)
            self._num_told, self._told_at = end, now

    def _end_landing(self, pause: float | None) -> None:
        """Of all moves since the last new token: one may have followed another."""
        for move in self._landing:
            move.landed.set_result(pause)
        self._landing.clear()

    def _needed(self) -> set[WorkerIdentity]:
        return {self.writer} if self._handed_over else {w.identity for w in self.binding.workers}

    def _end_context(self) -> None:
        if self._context_tokens:
            self._load.end_context(self.binding, self._context_tokens)
            self._context_tokens = 0

    # -- another writer before it has begun --------------------------------------------------

    def begin_rebinding(self, target: WorkerView) -> None:
        self.rebinding = target
        self.asked.add(target.identity)
        self._links.widen_inbox(self.attempt, target.identity)
        self._load.begin_move(target.identity)
        self._attempts.append((self.attempt, target.identity))

    def settle_rebinding(self, target: WorkerView) -> None:
        """It has granted: the first one writes nothing."""
        if self.rebinding is not target:
            return
        self.rebinding = None
        self._load.end_answer(self.binding)
        self.binding = replace(self.binding, decode=target)
        self._bound = True

    def give_up_rebinding(self, target: WorkerView, *, for_good: bool) -> None:
        """The first one will write, or `for_good` is False and others may be asked."""
        if self.rebinding is not target:
            return
        self.rebinding = None
        self._load.give_up_move(target.identity)
        self._bound = for_good

    def _hear_of_rebinding(self, target: WorkerView, worker: WorkerIdentity) -> None:
        """Only who has the credit writes, whatever became of the prefill worker's word."""
        if worker == target.identity:
            self.settle_rebinding(target)
        elif worker == self.writer:
            self.give_up_rebinding(target, for_good=True)

    # -- a move ------------------------------------------------------------------------------

    def begin_move(self, target: WorkerView, attempt: AttemptId) -> FlightMove:
        move = self.move = FlightMove(target, attempt)
        self._links.open_inbox(attempt, [target.identity], self.hear)
        self._load.begin_move(target.identity)
        self._attempts.append((attempt, target.identity))
        return move

    def settle_move(self, move: FlightMove) -> None:
        """The target has it. If it has failed already, that is the attempt's failure now."""
        if self.move is not move:
            return
        self._links.close_inbox(self.attempt)
        self._end_context()
        self._load.end_answer(self.binding)
        move.settled = True
        self.attempt, self.move = move.attempt, None
        self._landing.append(move)
        self.binding = Binding(move.target, None, self.binding.rung)
        self._handed_over = True
        if move.failure is not None:
            self._say(move.failure, self.writer)

    def give_up_move(self, move: FlightMove) -> None:
        """The source goes on."""
        if self.move is not move:
            return
        self.move = None
        self._links.close_inbox(move.attempt)
        self._links.abort(move.attempt, [move.target.identity])
        self._load.give_up_move(move.target.identity)
        if not move.landed.done():
            move.landed.set_result(None)

    def lose_track(self, move: FlightMove, reason: str) -> None:
        """Nobody knows who has it: both are given up, and the journey begins a new attempt."""
        if self.move is move:
            self._say(AttemptFailed(FailureKind.WORKER_LOST, reason), self.writer)

    def _target_failed(self, move: FlightMove, error: AttemptFailed) -> None:
        """The source is told, and answers whether it had let go before."""
        if move.failure is None:
            move.failure = error
            self._links.abort(move.attempt, [self.writer])

    def _say(self, error: AttemptFailed, reporter: WorkerIdentity) -> None:
        failure = Failure(error.failure, error.message, error.retryable)
        self._keep(reporter, TokenDelta(self.attempt, 0, failure=failure))


def _culprit(binding: Binding, reporter: WorkerIdentity, kind: FailureKind) -> WorkerIdentity:
    """Whom to avoid next: a broken pair is blamed on the one that did not report it."""
    pair_failures = (
        FailureKind.PEER_LOST,
        FailureKind.PREFLIGHT,
        FailureKind.TRANSFER,
        FailureKind.FENCED,
        FailureKind.CREDIT_REFUSED,
        FailureKind.CREDIT_TIMEOUT,
        *UNTRIED,
    )
    if kind not in pair_failures:
        return reporter
    others = [w.identity for w in binding.workers if w.identity != reporter]
    return others[0] if others else reporter
