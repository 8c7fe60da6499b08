"""Carries what an engine step has to say to whom it concerns; one sequence's trouble is its own.

Lives on the event loop. Whatever raises on the way of one sequence's news fails that sequence at
once, as an attempt that may be tried again, and the others have theirs all the same.
"""

import logging

from segue.cluster.errors import FailureKind
from segue.cluster.handoff import Failure, TokenDelta
from segue.workers.attempts import Attempts
from segue.workers.decode_role import DecodeRole
from segue.workers.engine import Engine
from segue.workers.frame_outbox import FrameOutbox
from segue.workers.prefill_role import PrefillRole
from segue.workers.sequence import Sequence
from segue.workers.step_outcome import ChunkReady, Ended, StepOutcome

logger = logging.getLogger(__name__)


class News:
    def __init__(
        self,
        attempts: Attempts,
        engine: Engine,
        outbox: FrameOutbox,
        prefill: PrefillRole,
        decode: DecodeRole,
    ) -> None:
        self._attempts = attempts
        self._engine = engine
        self._outbox = outbox
        self._prefill = prefill
        self._decode = decode
        self.num_lost = 0  # attempts that failed because news of them did not get through

    def pass_on(self, outcome: StepOutcome) -> None:
        self._pass_on_tokens(outcome)
        for sequence in outcome.granted:
            try:
                self.grant(sequence)
            except Exception as error:
                self.lost(sequence, error)
        for chunk in outcome.chunks:
            try:
                self.hand_off(chunk)
            except Exception as error:
                self._prefill.discard(chunk)
                self.lost(chunk.sequence, error)
        for ended in outcome.ended:
            try:
                self.end(ended)
            except Exception as error:
                self.lost(ended.sequence, error)

    def _pass_on_tokens(self, outcome: StepOutcome) -> None:
        try:
            for gateway_id, delta in outcome.deltas():
                running = self._attempts.get(delta.attempt)
                if running is not None:
                    try:
                        self.tell(gateway_id, delta)
                    except Exception as error:
                        self.lost(running.sequence, error)
        except Exception as error:  # nobody knows whose tokens have not been told
            for sequence in outcome.generated.sequences if outcome.generated else ():
                self.lost(sequence, error)

    # -- the news of one sequence ------------------------------------------------------------

    def tell(self, gateway_id: str, delta: TokenDelta) -> None:
        self._outbox.put(gateway_id, delta)

    def grant(self, sequence: Sequence) -> None:
        self._decode.on_granted(sequence)

    def hand_off(self, chunk: ChunkReady) -> None:
        running = self._attempts.of(chunk.sequence)
        if running is None:
            self._prefill.discard(chunk)
            return
        if chunk.first_token is not None:
            running.awaits_engine = False
        running.events.put_nowait(chunk)

    def end(self, ended: Ended) -> None:
        sequence = ended.sequence
        running = self._attempts.of(sequence)
        if running is None:
            return
        running.awaits_engine = False
        if sequence.hands_off:
            running.events.put_nowait(ended)  # its owner ends it
            return
        if ended.failure is not None and self._decode.on_ended(sequence, ended.failure):
            return
        name = ended.finish.value if ended.finish else ""
        if ended.failure is not None:
            name = ended.failure.kind.value
            self._tell_failure(sequence, ended.failure)
        self._attempts.end(sequence.attempt, name)

    def _tell_failure(self, sequence: Sequence, failure: Failure) -> None:
        delta = TokenDelta(sequence.attempt, len(sequence.tokens), failure=failure)
        self._outbox.put(sequence.assignment.gateway_id, delta)

    # -- what did not get through ------------------------------------------------------------

    def lost(self, sequence: Sequence, error: Exception) -> None:
        """It fails here and now, unless it has ended before."""
        running = self._attempts.of(sequence)
        if running is None:
            return
        logger.error("news of %s were lost", sequence.attempt, exc_info=error)
        self.num_lost += 1
        failure = Failure(FailureKind.COMPUTE, f"the worker lost its news: {error!r}")
        # An owner takes it out of the engine itself, when no byte can arrive any more.
        has_owner = sequence.hands_off or self._decode.owns(sequence)
        try:
            self.end(Ended(sequence, None, failure))
        except Exception:
            logger.exception("%s could not be ended in order", sequence.attempt)
            self._tell_failure(sequence, failure)
            running.abort("the worker lost its news")
        if not has_owner:
            self._engine.post(lambda: self._engine.drop(sequence))
