"""Tells the control tokens that a chat template writes from text that only looks like them.

    client's text  ---guard--->  no control token is spelled in it: a mark stands inside each
    rendered       ---encode-->  those still spelled are the template's: stand-ins take their place,
                                 the marks are taken out, and the library finds stand-ins only

A stand-in is an added token of its own, found and split off by the same rules as the control token,
so that without control tokens in a client's text the ids are those of the rendered text as it is.
"""

import json
import re
import secrets
from typing import Any

from tokenizers import AddedToken, Tokenizer

from segue.cluster.errors import InvalidRequest

MAX_DEPTH = 64
_WORD = re.compile(r"\w+")


def _unguessable() -> str:
    """Characters for private use, which have no case and which no filter of a template touches."""
    return "".join(chr(0xE100 + secrets.randbelow(0x1700)) for _ in range(10))


_MARK = _unguessable()
_MARK_AS_ASCII = json.dumps(_MARK)[1:-1]


class ControlTokens:
    """One to a tokenizer, to which it adds the stand-ins: ids that must never leave `encode`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().items()
        control = {i: t for i, t in added if t.special and len(t.content) > 1}
        name = _unguessable()
        self._stand_ins = {t.content: f"{name}{i}\ue000" for i, t in control.items()}
        tokenizer.add_tokens(
            [
                AddedToken(
                    self._stand_ins[t.content],
                    special=False,
                    normalized=t.normalized,
                    lstrip=t.lstrip,
                    rstrip=t.rstrip,
                    single_word=t.single_word,
                )
                for t in control.values()
            ]
        )
        self._real_ids = {
            tokenizer.token_to_id(self._stand_ins[t.content]): i for i, t in control.items()
        }
        spelled = self._stand_ins.keys()
        self._lengths = sorted({len(text) for text in spelled}, reverse=True)
        beginnings = "|".join(re.escape(text) for text in sorted({t[:2] for t in spelled}))
        self._beginning = re.compile(f"(?={beginnings})" if beginnings else r"(?!)")
        # Not words: templates compare names and types with those.
        heads = {text[:i] for text in spelled for i in range(1, len(text))}
        tails = {text[i:] for text in spelled for i in range(1, len(text))}
        self._heads = {text for text in heads if not _WORD.fullmatch(text)}
        self._tails = {text for text in tails if not _WORD.fullmatch(text)}

    def guard(self, value: Any, param: str, depth: int = 0) -> Any:
        """A copy of a client's JSON value whose text can not become control tokens."""
        if isinstance(value, str):
            return self._guarded(value)
        if not isinstance(value, dict | list):
            return value
        if depth == MAX_DEPTH:
            raise InvalidRequest(f"{param} is nested more than {MAX_DEPTH} deep", param=param)
        if isinstance(value, list):
            return [self.guard(item, param, depth + 1) for item in value]
        return {
            self._guarded(str(key)): self.guard(item, param, depth + 1)
            for key, item in value.items()
        }

    def plain(self, rendered: str) -> str:
        """What the template would have written of unguarded text."""
        # A template may have written a client's text as JSON in ASCII.
        return rendered.replace(_MARK, "").replace(_MARK_AS_ASCII, "")

    def encode(self, rendered: str, add_special_tokens: bool) -> tuple[int, ...]:
        text = self.plain(self._with_stand_ins(rendered))
        self._tokenizer.encode_special_tokens = True  # as text, that is
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        finally:
            self._tokenizer.encode_special_tokens = False
        return tuple(self._real_ids.get(token_id, token_id) for token_id in ids)

    def _guarded(self, text: str) -> str:
        """With a mark after the first character of each control token, overlapping ones included.

        A part of one at either end is shut off too: text that stands there may complete it.
        """
        parts: list[str] = []
        done = 0
        for found in self._beginning.finditer(text):
            if self._spelled_at(text, found.start()) is not None:
                parts += (text[done : found.start() + 1], _MARK)
                done = found.start() + 1
        lengths = range(1, min(len(text), self._lengths[0] if self._lengths else 0) + 1)
        before = _MARK if any(text[:n] in self._tails for n in lengths) else ""
        after = _MARK if any(text[-n:] in self._heads for n in lengths) else ""
        return "".join((before, *parts, text[done:], after))

    def _with_stand_ins(self, text: str) -> str:
        parts: list[str] = []
        done = 0
        for found in self._beginning.finditer(text):
            begin = found.start()
            spelled = self._spelled_at(text, begin) if begin >= done else None
            if spelled is not None:
                parts += (text[done:begin], self._stand_ins[spelled])
                done = begin + len(spelled)
        return "".join((*parts, text[done:]))

    def _spelled_at(self, text: str, begin: int) -> str | None:
        """The longest control token that begins there, as the library chooses."""
        for length in self._lengths:
            if (spelled := text[begin : begin + length]) in self._stand_ins:
                return spelled
        return None
