"""One attempt under way: which workers have it, and its move from one to another.

A move adds a second attempt, on the target, to the one on the source. The first token that the
target tells, or the source's word that it has let go, settles it: from then on only the target's
attempt counts. Until then only the source's does, and what happens to the target is no failure.
"""

import asyncio
from dataclasses import dataclass, field, replace

from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.fleet import WorkerView
from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.router.links import DeltaFrom, LinkLost, WorkerLinks
from segue.router.policy import Binding, Load


@dataclass(slots=True, eq=False)
class FlightMove:
    """`landed` resolves to the client's pause in seconds; None: the target told no token."""

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
    ) -> None:
        self._links = links
        self._load = load
        self.attempt = attempt
        self.binding = binding
        self.move: FlightMove | None = None
        self.rebinding: WorkerView | None = None  # asked whether it has room for the answer
        self.asked: set[WorkerIdentity] = set()  # all that ever were
        self._bound = binding.decode is None  # the writer will not be changed before it has begun
        self._landing: FlightMove | None = None  # settled; its first new token is still to come
        self._context_tokens = context_tokens  # 0: read
        self._handed_over = binding.decode is None  # no prefill worker is needed any more
        self._last_token = 0.0
        self._attempts = [(attempt, w.identity) for w in binding.workers]  # all that ever began
        self.inbox = links.open_inbox(attempt, [w.identity for w in binding.workers])
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
        if self._landing is not None:
            self._landing.landed.set_result(None)
            self._landing = None
        self._links.close_inbox(self.attempt)
        self._end_context()
        self._load.end_answer(self.binding)
        if not finished:
            for attempt, worker in self._attempts:
                self._links.abort(attempt, [worker])

    # -- what the workers say ----------------------------------------------------------------

    def observe(self, event: DeltaFrom | LinkLost) -> TokenDelta | None:
        """What the journey must take in; None: it does not concern it (any more).

        Raises AttemptFailed if a worker that is needed was lost.
        """
        move = self.move
        if self.rebinding is not None and isinstance(event, DeltaFrom):
            self._hear_of_rebinding(self.rebinding, event.worker)
        if isinstance(event, LinkLost):
            message = f"{event.worker}: {event.reason}"
            if event.worker in self._needed():
                raise AttemptFailed(FailureKind.WORKER_LOST, message)
            if move is not None and event.worker == move.target.identity:
                self._target_failed(move, AttemptFailed(FailureKind.WORKER_LOST, message))
            return None
        delta = event.delta
        if move is not None and delta.attempt == move.attempt:
            if delta.failure is not None and not delta.token_ids:
                self._target_failed(move, delta.failure.to_error())
                return None
            self.settle_move(move)
        elif delta.attempt != self.attempt or event.worker not in self._needed():
            return None
        if delta.failure is not None and self._landing is not None:
            self._landing.failure = delta.failure.to_error()
        if self.binding.decode is not None and event.worker == self.binding.decode.identity:
            self._handed_over = True
        if delta.token_ids:
            self._end_context()
        return delta

    def took_in(self, now: float) -> None:
        """New tokens have reached the client."""
        if self._landing is not None:
            self._landing.landed.set_result(now - self._last_token)
            self._landing = None
        self._last_token = now

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
        self._links.join_inbox(attempt, target.identity, self.inbox)
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
        self.attempt, self.move, self._landing = move.attempt, None, move
        self.binding = Binding(move.target, None, self.binding.rung)
        self._handed_over = True
        if move.failure is not None:
            self._say(move.failure)

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
            self._say(AttemptFailed(FailureKind.WORKER_LOST, reason))

    def _target_failed(self, move: FlightMove, error: AttemptFailed) -> None:
        """The source is told, and answers whether it had let go before."""
        if move.failure is None:
            move.failure = error
            self._links.abort(move.attempt, [self.writer])

    def _say(self, error: AttemptFailed) -> None:
        failure = Failure(error.failure, error.message, error.retryable)
        delta = TokenDelta(self.attempt, 0, failure=failure)
        self.inbox.events.put_nowait(DeltaFrom(self.writer, delta))
