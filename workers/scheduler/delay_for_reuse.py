"""Holds back a prompt whose next block is being computed for another one just now.

A step later it shares that block instead of computing it again. It waits only for one ahead of it
that got tokens in the last step: not for one that is itself kept waiting, and that it should pass.
Whoever is held back holds up nobody else. Blocks are told apart by their place in the tree, whose
roots have keys, so a salt, an adapter or anything else that is part of a key keeps equal prompts
from waiting in vain.
"""

from collections.abc import Iterable

from segue.workers.kvcache.kv_cache import KVCache, PrefixMatch
from segue.workers.kvcache.prefix_reuse import BlockPlace
from segue.workers.sequence import Sequence


class DelayForReuse:
    """For one scheduling step. `running`: contexts of which the last step computed a part."""

    def __init__(self, cache: KVCache, running: Iterable[Sequence]) -> None:
        self._cache = cache
        self._computing: dict[BlockPlace, Sequence] = {}  # the first of the queue that does
        for sequence in running:
            place = cache.unmatched(sequence, cache.match(sequence))
            if place is not None:
                first = self._computing.setdefault(place, sequence)
                if sequence.order < first.order:
                    self._computing[place] = sequence

    def should_wait(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Asked for each new context in order; one that need not wait is computed from now on."""
        place = self._cache.unmatched(sequence, match)
        if place is None:
            return False
        ahead = self._computing.get(place)
        if ahead is not None and ahead.order < sequence.order:
            return True
        self._computing[place] = sequence
        return False
