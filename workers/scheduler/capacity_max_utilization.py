"""MAX_UTILIZATION: admit on present need; when blocks or slots run out, pause from the tail.

Each step asks for the blocks of that step only: a new context all of its own at once, a
generation one where a block begins. The last of the queue that has started gives way to the first
that lacks something, itself if need be, so the head of the queue always goes on and nobody is
paused for somebody behind it. A paused sequence keeps its place and comes back by the same rule.
Contexts that are being handed off are not paused: they end by themselves.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listed

from segue.cluster.worker_status import UsualAnswer
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.capacity import (
    CapacityDecision,
    CapacityPolicyName,
    CapacityView,
    GivenBack,
    blocks_to_begin,
    blocks_to_continue,
)
from segue.workers.scheduler.plan import Decision, Reason
from segue.workers.sequence import Phase, Sequence


class MaxUtilization:
    name = CapacityPolicyName.MAX_UTILIZATION
    delays_for_reuse = True
    pauses = True
    learns = False

    @property
    def usual_answer(self) -> int | None:
        return 0

    @property
    def learned(self) -> UsualAnswer | None:
        return None

    def tokens_to_promise(self, sequence: Sequence, cache: KVCache) -> int:
        return len(sequence.tokens)

    def may_pause(self, growing: Listed[Sequence], cache: KVCache) -> bool:
        return True

    def note_answer(self, num_tokens: int, max_tokens: int) -> None:
        """Nothing is expected of answers."""

    def decide(self, view: CapacityView) -> CapacityDecision:
        """If all that run fit and nobody waits before one of them, only the queue is walked."""
        growth = _Growth(view)
        last = max((s.order for s in view.started), default=None) if view.waiting else None
        undisturbed = last is None or last < view.waiting[0].order
        if undisturbed and growth.total <= view.cache.pool.num_available:
            walk = _Walk(view, growth, list(view.waiting))
            walk.used = growth.total
            walk.num_scheduled = view.num_started
        else:
            everybody = sorted((*view.started, *view.waiting), key=lambda s: s.order)
            walk = _Walk(view, growth, everybody)
            walk.num_scheduled = view.num_started - len(view.started)
            walk.forget_adapters(view.started)
        walk.run()
        return walk.decision


class _Growth:
    """Blocks that each generation takes in this step."""

    def __init__(self, view: CapacityView) -> None:
        self.needs = {s: blocks_to_continue(s, s.num_computed, view.cache) for s in view.growing}
        self.total = sum(self.needs.values())


class _Walk:
    """One pass over `order`, front to back, with the pauses it takes simulated."""

    def __init__(self, view: CapacityView, growth: _Growth, order: list[Sequence]) -> None:
        self.view = view
        self.growth = growth
        self.order = order
        self.decision = CapacityDecision()
        self.available = view.cache.pool.num_available
        self.used = 0
        self.num_scheduled = 0
        self._slots = view.max_num_seqs - view.num_landing
        self._adapters = view.adapters
        self._given_back = GivenBack(view.cache.pool)

    def run(self) -> None:
        index, end = 0, len(self.order)
        while index < end:
            sequence = self.order[index]
            need = self._need(sequence)
            if need is not None:  # None: it waits for reuse
                while not self._fits(sequence, need) and index < end:
                    victim = next(self._victims(index, end), None)
                    if victim is None:
                        self._hold(sequence, need)
                        return
                    self._pause(self.order[victim])
                    end = victim
                if index < end:
                    self._schedule(sequence, need)
            index += 1

    def forget_adapters(self, sequences: Iterable[Sequence]) -> None:
        """They take them again when they are walked past."""
        if self._adapters is not None:
            for sequence in sequences:
                self._adapters.give_back(sequence)

    def _fits(self, sequence: Sequence, need: int) -> bool:
        fits = self.num_scheduled < self._slots and self.used + need <= self.available
        return fits and (self._adapters is None or self._adapters.fit(sequence))

    def _schedule(self, sequence: Sequence, need: int) -> None:
        self.num_scheduled += 1
        self.used += need
        if self._adapters is not None:
            self._adapters.take(sequence)
        if not _has_started(sequence):
            self.decision.admitted.append(sequence)

    def _need(self, sequence: Sequence) -> int | None:
        if _has_started(sequence):
            return self.growth.needs.get(sequence, 0)
        match, delay = self.view.cache.match(sequence), self.view.delay
        if delay and not sequence.lands and delay.should_wait(sequence, match):
            self.decision.held.append(Decision(sequence.attempt, Reason.WAITING_FOR_REUSE))
            return None
        return blocks_to_begin(sequence, match.live_full_blocks, self.view.cache)

    def _victims(self, index: int, end: int) -> Iterator[int]:
        return (at for at in range(end - 1, index - 1, -1) if _has_started(self.order[at]))

    def _pause(self, sequence: Sequence) -> None:
        self.decision.paused.append(sequence)
        self.available += self._given_back.pause(sequence)

    def _hold(self, sequence: Sequence, need: int) -> None:
        available = max(0, self.available - self.used)
        if self.num_scheduled >= self._slots:
            held = Decision(sequence.attempt, Reason.BATCH_FULL, self._slots + 1, self._slots)
        elif need > available or self._adapters is None:
            held = Decision(sequence.attempt, Reason.NO_BLOCKS, need, available)
        else:
            held = self._adapters.held(sequence)
        self.decision.held.append(held)


def _has_started(sequence: Sequence) -> bool:
    return sequence.phase in (Phase.CONTEXT, Phase.GENERATION)
