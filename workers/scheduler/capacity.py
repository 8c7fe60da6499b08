"""Which waiting sequences may hold KV: GUARANTEED_NO_EVICT.

Strictly first come, first served: if the head does not fit, nobody behind it is admitted, so a
large request is never starved by small ones. What waits for KV from a peer (a credit) and what
will be computed here stand in one queue and are promised blocks under one account.
"""

from collections.abc import Iterable

from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.plan import Decision, Reason
from segue.workers.sequence import Sequence


def admit(
    waiting: Iterable[Sequence], num_admitted: int, max_num_seqs: int, cache: KVCache
) -> tuple[list[Sequence], list[Decision]]:
    """Admit from the front of `waiting`; returns the admitted and a decision for each one seen.

    Admitted sequences own their context blocks when this returns.
    """
    admitted: list[Sequence] = []
    decisions: list[Decision] = []
    obstacle: Reason | None = None
    for sequence in waiting:
        if obstacle is None:
            if num_admitted + len(admitted) >= max_num_seqs:
                obstacle = Reason.BATCH_FULL
            elif not cache.admit(sequence, landing=sequence.source is not None):
                obstacle = Reason.NO_BLOCKS
            else:
                admitted.append(sequence)
                decisions.append(Decision(sequence.attempt, Reason.ADMITTED))
                continue
            decisions.append(Decision(sequence.attempt, obstacle))
        else:
            decisions.append(Decision(sequence.attempt, Reason.BEHIND_HEAD))
    return admitted, decisions
