"""Holds back a prompt whose next block is being computed for another one just now.

A step later it shares that block instead of computing it again. Whoever is held back holds up
nobody else. Blocks are told apart by their keys, so a salt, an adapter or anything else that is
part of a key keeps equal prompts from waiting for each other in vain.
"""

from collections.abc import Iterable

from segue.workers.kvcache.kv_cache import KVCache, PrefixMatch
from segue.workers.sequence import Sequence


class DelayForReuse:
    """For one scheduling step. `started`: contexts that are partly computed."""

    def __init__(self, cache: KVCache, started: Iterable[Sequence]) -> None:
        self._computing = {
            key
            for sequence in started
            if (key := cache.match(sequence).first_unmatched_key) is not None
        }

    def should_wait(self, match: PrefixMatch) -> bool:
        """Asked for each new context in order; one that need not wait is computed from now on."""
        key = match.first_unmatched_key
        if key is None:
            return False
        if key in self._computing:
            return True
        self._computing.add(key)
        return False
