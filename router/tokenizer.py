"""Text to token ids and back with the `tokenizers` library, bounded before it is begun."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from segue.cluster.errors import ConfigurationError, InvalidRequest
from segue.router.token_bytes import TokenBytes

_NORMALIZER_SLACK = 4  # how far a normalizer may shrink a text before it is split


class TextTokenizer:
    """The work grows with the text and holds the GIL: nothing for an event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.library = tokenizer
        self.tokens = TokenBytes(tokenizer)
        slack = _NORMALIZER_SLACK if _may_shrink(tokenizer) else 1
        self._bytes_per_token = self.tokens.longest() * slack

    def check_size(self, num_bytes: int, max_tokens: int, param: str) -> None:
        """Raises InvalidRequest if so much text can not fit `max_tokens` tokens."""
        if num_bytes > max_tokens * self._bytes_per_token:
            raise InvalidRequest(
                f"{param} has {num_bytes} bytes of text, more than {max_tokens} tokens can hold",
                param=param,
            )

    def encode(
        self, text: str, *, add_special_tokens: bool, max_tokens: int, param: str
    ) -> tuple[int, ...]:
        """Raises InvalidRequest, without tokenizing, if `text` can not fit `max_tokens` tokens.

        A text that passes may still turn out longer than `max_tokens`.
        """
        self.check_size(len(text.encode()), max_tokens, param)
        return tuple(self.library.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens included."""
        return b"".join(self.tokens[token_id] for token_id in token_ids).decode("utf-8", "replace")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        return [self.tokens.piece(token_id) or "" for token_id in token_ids]


def load_tokenizer(model_folder: Path) -> TextTokenizer:
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
    return TextTokenizer(tokenizer)


def _may_shrink(tokenizer: Tokenizer) -> bool:
    """Whether text may be lost before it is split: to a normalizer, or to a token's white space."""
    added = tokenizer.get_added_tokens_decoder().values()
    strips = any(token.lstrip or token.rstrip for token in added)
    return strips or tokenizer.normalizer is not None
