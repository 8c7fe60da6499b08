"""How long an answer will be, as far as that can be told when room for it is promised.

An estimate may be wrong in both directions: too long wastes room, too short is made good by the
capacity policy, which takes more room or pauses somebody.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Protocol

from segue.cluster.worker_status import UsualAnswer

WINDOW = 512  # answers that are remembered
FEWEST = 32  # answers before which nothing is believed
QUANTILE = 0.9


class ExpectedOutput(Protocol):
    @property
    def usual(self) -> int | None:
        """In tokens, whatever the limit; None: nothing is known."""
        ...

    @property
    def learned(self) -> UsualAnswer | None:
        """What answers that have ended here taught."""
        ...

    def tokens(self, max_tokens: int) -> int:
        """Of an answer that may have `max_tokens`; from 1 to that."""
        ...

    def note(self, num_tokens: int, max_tokens: int) -> None:
        """An answer has ended."""
        ...


class FixedOutput:
    """What an operator knows of the answers."""

    def __init__(self, num_tokens: int) -> None:
        self.usual: int | None = num_tokens
        self.learned: UsualAnswer | None = None
        self._num_tokens = num_tokens

    def tokens(self, max_tokens: int) -> int:
        return min(max_tokens, self._num_tokens)

    def note(self, num_tokens: int, max_tokens: int) -> None:
        """Nothing is learned."""


class LearnedOutput:
    """What nine in ten of the latest answers stayed within, in tokens and as a share of their
    limit, whichever is more.

    The length alone would take answers that were cut off at a low limit for short ones; the share
    alone would think too little of answers with a low limit. Until it knows enough it believes what
    it `heard`, or else the worst.
    """

    def __init__(self, heard: UsualAnswer | None = None) -> None:
        self._heard = heard
        self._answers: deque[tuple[int, float]] = deque()
        self._lengths: list[int] = []  # these and the shares are sorted
        self._shares: list[float] = []

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def usual(self) -> int | None:
        believed = self.learned or self._heard
        return None if believed is None else believed.tokens

    @property
    def learned(self) -> UsualAnswer | None:
        if len(self) < FEWEST:
            return None
        place = math.ceil(QUANTILE * len(self)) - 1
        return UsualAnswer(self._lengths[place], self._shares[place])

    def tokens(self, max_tokens: int) -> int:
        believed = self.learned or self._heard
        if believed is None:
            return max_tokens
        share = math.ceil(believed.share * max_tokens)
        return min(max_tokens, max(1, believed.tokens, share))

    def note(self, num_tokens: int, max_tokens: int) -> None:
        if len(self) == WINDOW:
            length, share = self._answers.popleft()
            del self._lengths[bisect_left(self._lengths, length)]
            del self._shares[bisect_left(self._shares, share)]
        share = min(1.0, num_tokens / max(1, max_tokens))
        self._answers.append((num_tokens, share))
        insort(self._lengths, num_tokens)
        insort(self._shares, share)
