"""Holds back a prompt whose next block is being computed for another one just now.

A step later it shares that block instead of computing it again. Whoever is held back holds up
nobody else. Blocks are told apart by their place in the tree, whose roots have keys, so a salt, an
adapter or anything else that is part of a key keeps equal prompts from waiting in vain.
"""

from collections.abc import Iterable

from segue.workers.kvcache.kv_cache import KVCache, PrefixMatch
from segue.workers.kvcache.prefix_reuse import BlockPlace
from segue.workers.sequence import Sequence


class DelayForReuse:
    """For one scheduling step. `started`: contexts that are partly computed."""

    def __init__(self, cache: KVCache, started: Iterable[Sequence]) -> None:
        self._cache = cache
        self._computing: set[BlockPlace | None] = {
            cache.unmatched(sequence, cache.match(sequence)) for sequence in started
        }

    def should_wait(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Asked for each new context in order; one that need not wait is computed from now on."""
        place = self._cache.unmatched(sequence, match)
        if place is None:
            return False
        if place in self._computing:
            return True
        self._computing.add(place)
        return False
