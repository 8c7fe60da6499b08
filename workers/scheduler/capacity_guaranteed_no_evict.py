"""GUARANTEED_NO_EVICT: whoever is admitted has blocks to its expected end.

Strictly in the order of the queue: if one does not fit, nobody behind it is admitted, so a large
request is never starved by small ones. Only who lacks no blocks but a slot for its adapter is
passed, and that by no more than those of the next `max_num_seqs` arrivals. Who moves here comes
before all others that wait: it holds KV at its source meanwhile, and they hold none. What lands
from a peer and what is computed here stand in one queue under one account; two queues would let
either starve the other.

Everybody admitted, started contexts included, has its remaining blocks promised in the cache, so
a decision costs nothing for those that run.

If whole answers are expected, as by default, nobody is ever paused. Otherwise an answer may outgrow
its promise. It then takes a block at a time of what is promised to nobody; if that is too little,
the last of the queue that has started gives way, itself if need be. It comes back in its place,
with room for its whole answer, so it outgrows nothing again. The head of the queue always goes on
in the end: it gives way only to what is landing, which ends by itself, and with nobody else there
it fits.
"""

import math
from collections.abc import Sequence as Listed

from segue.cluster.worker_status import UsualAnswer
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.capacity import (
    CapacityDecision,
    CapacityPolicyName,
    CapacityView,
    GivenBack,
    blocks_to_continue,
)
from segue.workers.scheduler.expected_output import ExpectedOutput
from segue.workers.scheduler.plan import Decision, Reason
from segue.workers.sequence import Sequence


class GuaranteedNoEvict:
    """`expected` None: every answer is promised as long as it may be."""

    name = CapacityPolicyName.GUARANTEED_NO_EVICT
    delays_for_reuse = True

    def __init__(self, expected: ExpectedOutput | None = None) -> None:
        self.expected = expected
        self.pauses = self.learns = expected is not None

    @property
    def usual_answer(self) -> int | None:
        return None if self.expected is None else self.expected.usual

    @property
    def learned(self) -> UsualAnswer | None:
        return None if self.expected is None else self.expected.learned

    def tokens_to_promise(self, sequence: Sequence, cache: KVCache) -> int:
        """Who was paused, or has written as much as was expected, may need its whole answer."""
        if self.expected is None or sequence.decode_peer is not None:
            return cache.final_tokens(sequence)
        expected = self.expected.tokens(sequence.request.stop.max_tokens)
        if sequence.num_pauses or sequence.num_produced >= expected:
            return sequence.num_final
        return sequence.num_prompt + expected

    def may_pause(self, growing: Listed[Sequence], cache: KVCache) -> bool:
        if self.expected is None:
            return False
        overdrawn = sum(_overdrawn(sequence, cache) for sequence in growing)
        return overdrawn > cache.pool.num_available - cache.promised_blocks

    def note_answer(self, num_tokens: int, max_tokens: int) -> None:
        if self.expected is not None:
            self.expected.note(num_tokens, max_tokens)

    def decide(self, view: CapacityView) -> CapacityDecision:
        if self.may_pause(view.growing, view.cache):
            return self._make_room(view)
        decision = CapacityDecision()
        cache, delay = view.cache, view.delay
        # Those that outgrow their promise come first.
        available = cache.pool.num_available - cache.promised_blocks
        if self.pauses:
            available -= sum(_overdrawn(sequence, cache) for sequence in view.growing)
        slots, match_of, size = view.num_free_slots, cache.match, cache.block_size
        adapters, last_to_pass = view.adapters, math.inf
        admitted, matches = decision.admitted, decision.matches
        for sequence in _holders_first(view.waiting):
            if sequence.order[-1] > last_to_pass:
                break
            if len(admitted) == slots:
                full = view.max_num_seqs
                decision.held.append(Decision(sequence.attempt, Reason.BATCH_FULL, full + 1, full))
                break
            match = match_of(sequence)
            if delay and not sequence.lands and delay.should_wait(sequence, match):
                decision.held.append(Decision(sequence.attempt, Reason.WAITING_FOR_REUSE))
                continue
            tokens = self.tokens_to_promise(sequence, cache)
            # Idle cached blocks give no credit: they are among those that are available.
            need = -(-tokens // size) - match.live_full_blocks
            if need > available:
                held = Decision(sequence.attempt, Reason.NO_BLOCKS, need, max(0, available))
                decision.held.append(held)
                break
            if adapters is not None:
                if not adapters.fit(sequence):
                    decision.held.append(adapters.held(sequence))
                    last_to_pass = min(last_to_pass, sequence.order[-1] + view.max_num_seqs)
                    continue
                adapters.take(sequence)
            available -= need
            admitted.append(sequence)
            matches[sequence] = match
        return decision

    def _make_room(self, view: CapacityView) -> CapacityDecision:
        """Pause from the tail until those before it can grow. Nobody is admitted meanwhile: who
        was paused may stand before those that wait."""
        cache = view.cache
        room = cache.pool.num_available - cache.promised_blocks
        given_back = GivenBack(cache.pool)
        started = sorted(view.started, key=lambda s: s.order)
        paused: dict[Sequence, None] = {}
        for sequence in sorted(view.growing, key=lambda s: s.order):
            need = _overdrawn(sequence, cache)
            while need > room and sequence not in paused:
                victim = started.pop()
                paused[victim] = None
                room += given_back.pause(victim) + victim.promised_blocks
            if sequence in paused:
                break  # and so are all that stand behind it
            room -= need
        head = view.waiting[:1]
        held = [Decision(s.attempt, Reason.NO_BLOCKS, None, max(0, room)) for s in head]
        return CapacityDecision(paused=list(paused), held=held)


def _holders_first(waiting: Listed[Sequence]) -> Listed[Sequence]:
    """Who was paused after it had moved here holds as little as others."""
    moving = [s for s in waiting if s.moves and s.lands]
    if not moving:
        return waiting
    return [*moving, *(s for s in waiting if not (s.moves and s.lands))]


def _overdrawn(sequence: Sequence, cache: KVCache) -> int:
    """Blocks that its next token takes beyond those it was promised."""
    need = blocks_to_continue(sequence, sequence.num_computed, cache)
    return max(0, need - sequence.promised_blocks)
