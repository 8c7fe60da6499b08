"""What every capacity policy is asked, what it answers, and the block arithmetic they share.

A policy looks at counts and decides; it changes nothing. The scheduler then carries the decision
out: pauses first, then growth, then admissions, so what a pause gives back is there to be taken.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from segue.cluster.worker_status import UsualAnswer
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.prefix_match import PrefixMatch
from segue.workers.scheduler.adapter_slots import AdapterSlots
from segue.workers.scheduler.delay_for_reuse import DelayForReuse
from segue.workers.scheduler.plan import Decision
from segue.workers.sequence import Sequence as TokenSequence


class CapacityPolicyName(StrEnum):
    GUARANTEED_NO_EVICT = "guaranteed_no_evict"
    MAX_UTILIZATION = "max_utilization"
    STATIC_BATCH = "static_batch"


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The state before a step. `waiting` and `started` are in the order of the queue.

    `started` sequences hold blocks and can be paused: contexts and generations. Contexts that are
    being handed off cannot; they are only counted in `num_started`. `growing` are the generations
    that begin a block in this step. What is landing holds a slot, and blocks that a
    peer's data may arrive in at any moment: it is only counted.
    """

    cache: KVCache
    max_num_seqs: int
    waiting: Sequence[TokenSequence]
    started: Sequence[TokenSequence] = ()
    num_started: int = 0
    num_generating: int = 0
    num_landing: int = 0
    growing: Sequence[TokenSequence] = ()
    delay: DelayForReuse | None = None
    adapters: AdapterSlots | None = None  # None: none are limited

    @property
    def num_free_slots(self) -> int:
        return self.max_num_seqs - self.num_started - self.num_landing


@dataclass(slots=True)
class CapacityDecision:
    """Who is admitted, in order, who is paused first, and why others are held.

    Whoever waits and is neither admitted nor named in `held` stands behind the first one named.
    """

    admitted: list[TokenSequence] = field(default_factory=list)
    paused: list[TokenSequence] = field(default_factory=list)
    held: list[Decision] = field(default_factory=list)
    matches: dict[TokenSequence, PrefixMatch] = field(default_factory=dict)  # of the admitted


class CapacityPolicy(Protocol):
    name: CapacityPolicyName
    delays_for_reuse: bool
    pauses: bool  # it must be told who has started
    learns: bool  # it must be told how answers ended

    @property
    def usual_answer(self) -> int | None:
        """Tokens promised to most answers, unless they may have fewer; None: all they may have."""
        ...

    @property
    def learned(self) -> UsualAnswer | None:
        """What the answers themselves taught; None: nothing."""
        ...

    def tokens_to_promise(self, sequence: TokenSequence, cache: KVCache) -> int:
        """Admission must find room for the KV of this many tokens, now or promised."""
        ...

    def may_pause(self, growing: Sequence[TokenSequence], cache: KVCache) -> bool:
        """Whether it must decide now although nobody came or went: these begin a block."""
        ...

    def note_answer(self, num_tokens: int, max_tokens: int) -> None:
        """An answer has ended by itself or by its limit."""
        ...

    def decide(self, view: CapacityView) -> CapacityDecision: ...


class GivenBack:
    """What pauses make available: blocks that only paused sequences hold, and no reader."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._released: Counter[int] = Counter()  # owners that block ids would lose

    def pause(self, sequence: TokenSequence) -> int:
        """Blocks that this one more pause makes available."""
        count, released = 0, self._released
        for block_id in sequence.block_ids:
            released[block_id] += 1
            if self._pool.num_holders(block_id) == released[block_id]:
                count += 1
        return count


def blocks_to_begin(sequence: TokenSequence, live_full_blocks: int, cache: KVCache) -> int:
    """Blocks for the whole context of a new or resumed sequence, drafts included."""
    tokens = min(len(sequence.tokens) + sequence.num_drafts, cache.final_tokens(sequence))
    return cache.blocks_for(max(tokens, len(sequence.tokens))) - live_full_blocks


def blocks_to_continue(sequence: TokenSequence, num_computed: int, cache: KVCache) -> int:
    """Blocks that one more step of a generation takes, with `num_computed` tokens in its KV."""
    known = sequence.request.num_prompt_tokens + sequence.request.stop.max_tokens
    end = min(num_computed + 1 + sequence.num_drafts, known)
    return max(0, cache.blocks_for(end) - len(sequence.block_ids))
