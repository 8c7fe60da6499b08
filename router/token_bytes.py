"""What each token is in bytes, read from the decoder of a tokenizer.

With bytes a character that spans tokens needs no look-back: UTF-8 itself says what is missing.
Two families of decoders are known, byte level (GPT-2, Llama 3, Qwen, SmolLM) and SentencePiece
pieces with byte fallback (Llama 2, Mistral, Gemma); others are refused when the model is loaded.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from segue.cluster.errors import ConfigurationError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The table is filled as tokens are first seen; it is never larger than the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._to_bytes = _piece_decoder(_decoder_steps(tokenizer))
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._end = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._table: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of a token; none if the tokenizer has no such token (padded vocabularies)."""
        known = self._table.get(token_id)
        if known is None:
            piece = self.piece(token_id)
            known = b"" if piece is None else self._to_bytes(piece)
            self._table[token_id] = known
        return known

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's own spelling; tokens that were added since count for none."""
        return self._tokenizer.id_to_token(token_id) if token_id < self._end else None

    def longest(self) -> int:
        """No token of the vocabulary has more bytes."""
        # A byte-level piece has a character for each byte; added tokens are written as they are.
        added = self._tokenizer.get_added_tokens_decoder().values()
        lengths = [len(token.content.encode()) for token in added]
        pieces = self._tokenizer.get_vocab(with_added_tokens=False)
        one_each = self._to_bytes is _byte_level
        lengths += (len(piece) if one_each else len(piece.encode()) for piece in pieces)
        return max(lengths, default=1)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The decoder as tokenizer.json spells it, without writing out the vocabulary again."""
    decoder = tokenizer.decoder
    if decoder is None:
        return []
    spec: dict[str, Any] = json.loads(decoder.__getstate__())
    return [*spec.get("decoders", [spec])]


def _piece_decoder(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"Metaspace", "ByteFallback"}:
        mark = next((s["replacement"] for s in steps if s["type"] == "Metaspace"), "\u2581")
        return lambda piece: _sentence_piece(piece, mark)
    names = ", ".join(sorted(kinds)) or "none"
    raise ConfigurationError(f"tokenizer.json: decoder '{names}' is not supported")


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in kept}
    moved = (byte for byte in range(256) if byte not in set(kept))
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:  # an added token is written as it is
        return piece.encode()


def _sentence_piece(piece: str, mark: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(mark, " ").encode()
