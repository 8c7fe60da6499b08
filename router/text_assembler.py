"""Turns the token log of one sample into text, piece by piece.

A pure function of (options, log): tokens are taken one at a time, so where the stream was cut
never changes the text. Two things are held back: bytes of a character that is not whole yet, and
the longest tail of the text that is a proper prefix of a stop string. Both are bounded.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from segue.cluster.request import FinishReason
from segue.router.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How tokens become text. A stop string that completes by `min_tokens` does not count."""

    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    include_stop: bool = False
    skip_special_tokens: bool = True
    eos_token_ids: frozenset[int] = frozenset()  # empty if the request ignores them


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event added. `stop_reason`: a stop string or token id, None for end-of-sequence."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    stop_reason: str | int | None = None


class TextAssembler:
    def __init__(self, tokens: TokenBytes, options: TextOptions) -> None:
        self._tokens = tokens
        self._options = options
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_StopMatcher(stop) for stop in options.stop]
        self._held = ""  # a tail of the text that some stop string may still grow from
        self.num_tokens = 0

    def feed(self, token_ids: Sequence[int], finish: FinishReason | None = None) -> Piece:
        """Take the next tokens of the log. A piece with `finish` is the last one."""
        parts: list[str] = []
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            ends_here = finish is FinishReason.STOP and index == len(token_ids) - 1
            if ends_here and not self._options.include_stop:
                continue  # the stop token itself is not text
            stop = self._append(token_id, parts)
            if stop is not None:
                kept = tuple(token_ids[: index + 1])
                return Piece("".join(parts), kept, FinishReason.STOP, stop)
        if finish is None:
            return Piece("".join(parts), tuple(token_ids))
        parts.append(self._held)
        self._held = ""
        return Piece("".join(parts), tuple(token_ids), finish, self._stop_token(token_ids, finish))

    def _append(self, token_id: int, parts: list[str]) -> str | None:
        """Add the text of one token to `parts`; return the stop string that it completes."""
        if self._options.skip_special_tokens and token_id in self._tokens.special_ids:
            return None
        fresh = self._characters.decode(self._tokens[token_id])
        if not self._matchers:
            parts.append(fresh)
            return None
        text = self._held + fresh
        may_stop = self.num_tokens > self._options.min_tokens
        for end, character in enumerate(fresh, len(self._held) + 1):
            # Every matcher takes every character: the first in list order that is complete wins.
            complete = [m.stop for m in self._matchers if m.advance(character)]
            if complete and may_stop:
                keep = end if self._options.include_stop else end - len(complete[0])
                parts.append(text[:keep])
                self._held = ""
                return complete[0]
        held = max(m.matched for m in self._matchers)
        parts.append(text[: len(text) - held])
        self._held = text[len(text) - held :]
        return None

    def _stop_token(self, token_ids: Sequence[int], finish: FinishReason) -> int | None:
        if finish is not FinishReason.STOP or not token_ids:
            return None
        return None if token_ids[-1] in self._options.eos_token_ids else token_ids[-1]


class _StopMatcher:
    """Knuth-Morris-Pratt: how much of `stop` the text ends with, in O(1) a character."""

    __slots__ = ("_fallback", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0] * len(stop)
        for index in range(1, len(stop)):
            length = self._fallback[index - 1]
            while length and stop[index] != stop[length]:
                length = self._fallback[length - 1]
            self._fallback[index] = length + (stop[index] == stop[length])

    def advance(self, character: str) -> bool:
        """True if `stop` is complete; `matched` then counts the longest proper prefix only."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.stop[self.matched] != character:
            return False
        self.matched += 1
        if self.matched < len(self.stop):
            return False
        self.matched = self._fallback[-1]
        return True
