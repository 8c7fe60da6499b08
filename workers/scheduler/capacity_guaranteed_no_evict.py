"""GUARANTEED_NO_EVICT: whoever is admitted has blocks to its very end, and is never paused.

Strictly in the order of the queue: if one does not fit, nobody behind it is admitted, so a large
request is never starved by small ones. What lands from a peer and what is computed here stand in
one queue under one account; two queues would let either starve the other.

Everybody admitted, started contexts included, has its remaining blocks promised in the cache, so
a decision costs nothing for those that run.
"""

from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.capacity import (
    CapacityDecision,
    CapacityPolicyName,
    CapacityView,
    blocks_to_completion,
)
from segue.workers.scheduler.plan import Decision, Reason
from segue.workers.sequence import Sequence


class GuaranteedNoEvict:
    name = CapacityPolicyName.GUARANTEED_NO_EVICT
    delays_for_reuse = True
    pauses = False

    def tokens_to_promise(self, sequence: Sequence, cache: KVCache) -> int:
        return cache.final_tokens(sequence)

    def decide(self, view: CapacityView) -> CapacityDecision:
        decision = CapacityDecision()
        cache, delay = view.cache, view.delay
        available = cache.pool.num_available - cache.promised_blocks
        slots, match_of = view.num_free_slots, cache.match
        admitted, matches = decision.admitted, decision.matches
        for sequence in view.waiting:
            if len(admitted) == slots:
                full = view.max_num_seqs
                decision.held.append(Decision(sequence.attempt, Reason.BATCH_FULL, full + 1, full))
                break
            match = match_of(sequence)
            if delay and not sequence.lands and delay.should_wait(sequence, match):
                decision.held.append(Decision(sequence.attempt, Reason.WAITING_FOR_REUSE))
                continue
            need = blocks_to_completion(sequence, match.live_full_blocks, cache)
            if need > available:
                held = Decision(sequence.attempt, Reason.NO_BLOCKS, need, max(0, available))
                decision.held.append(held)
                break
            available -= need
            admitted.append(sequence)
            matches[sequence] = match
        return decision
