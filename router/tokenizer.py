"""Text to token ids and back with the `tokenizers` library; long work runs in a few threads."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from segue.cluster.errors import ConfigurationError, InvalidRequest
from segue.router.token_bytes import TokenBytes

NUM_THREADS = 2
_INLINE_CHARS = 512  # below this a thread costs more than the work
_INLINE_TOKENS = 2000
_NORMALIZER_SLACK = 4  # how far a normalizer may shrink a text before it is split


class TextTokenizer:
    def __init__(self, tokenizer: Tokenizer, threads: ThreadPoolExecutor) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        self.tokens = TokenBytes(tokenizer)
        pieces = tokenizer.get_vocab(with_added_tokens=True)
        self._longest_piece = max((len(piece) for piece in pieces), default=1)

    async def encode(
        self, text: str, *, add_special_tokens: bool, max_tokens: int, param: str
    ) -> tuple[int, ...]:
        """Raises InvalidRequest, without tokenizing, if `text` can not fit `max_tokens` tokens.

        A text that passes may still turn out longer than `max_tokens`.
        """
        if len(text) > max_tokens * self._longest_piece * _NORMALIZER_SLACK:
            raise InvalidRequest(
                f"{param} has {len(text)} characters, more than {max_tokens} tokens can hold",
                param=param,
            )
        if len(text) <= _INLINE_CHARS:
            return self._encode(text, add_special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens included."""
        if len(token_ids) <= _INLINE_TOKENS:
            return self._decode(token_ids)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._decode, token_ids)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.tokens[token_id] for token_id in token_ids).decode("utf-8", "replace")


def load_tokenizer(model_folder: Path, threads: ThreadPoolExecutor) -> TextTokenizer:
    path = model_folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(f"the model folder has no {path.name}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConfigurationError(f"{path.name} can not be read: {error}") from error
    # Limits belong to the gateway: a file that asks for truncation would cut prompts in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextTokenizer(tokenizer, threads)
