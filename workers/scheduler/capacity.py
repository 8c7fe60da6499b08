"""What every capacity policy is asked, what it answers, and the block arithmetic they share.

A policy looks at counts and decides; it changes nothing. The scheduler then carries the decision
out: pauses first, then growth, then admissions, so what a pause gives back is there to be taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.prefix_match import PrefixMatch
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

    `started` sequences hold blocks and can be paused: contexts and generations. `growing` are the
    generations that begin a block in this step. What is landing holds a slot, and blocks that a
    peer's data may arrive in at any moment: it is only counted.
    """

    cache: KVCache
    max_num_seqs: int
    waiting: Sequence[TokenSequence]
    started: Iterable[TokenSequence] = ()
    num_started: int = 0
    num_generating: int = 0
    num_landing: int = 0
    growing: Sequence[TokenSequence] = ()
    delay: DelayForReuse | None = None

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
    pauses: bool

    def tokens_to_promise(self, sequence: TokenSequence, cache: KVCache) -> int:
        """Admission must find room for the KV of this many tokens, now or promised."""
        ...

    def decide(self, view: CapacityView) -> CapacityDecision: ...


def blocks_to_completion(sequence: TokenSequence, live_full_blocks: int, cache: KVCache) -> int:
    """Blocks that a new sequence takes out of what is available until its end.

    Shared blocks that are in use cost nothing; idle cached ones do, being available themselves.
    """
    return cache.blocks_for(cache.final_tokens(sequence)) - live_full_blocks


def blocks_to_begin(sequence: TokenSequence, live_full_blocks: int, cache: KVCache) -> int:
    """Blocks for the whole context of a new or resumed sequence, drafts included."""
    tokens = min(len(sequence.tokens) + sequence.num_drafts, cache.final_tokens(sequence))
    return cache.blocks_for(max(tokens, len(sequence.tokens))) - live_full_blocks


def blocks_to_continue(sequence: TokenSequence, num_computed: int, cache: KVCache) -> int:
    """Blocks that one more step of a generation takes, with `num_computed` tokens in its KV."""
    known = sequence.request.num_prompt_tokens + sequence.request.stop.max_tokens
    end = min(num_computed + 1 + sequence.num_drafts, known)
    return max(0, cache.blocks_for(end) - len(sequence.block_ids))
