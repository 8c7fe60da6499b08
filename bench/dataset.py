"""Prompts of a known length that share nothing but what they are asked to share.

As token ids the length is exact whatever the model. As text it is about one token a word, or
exact (before the chat template) with the model's tokenizer; the server's usage has the last word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from segue.cluster.errors import ConfigurationError

# Above the bytes and special tokens of the usual vocabularies, below the end of the small ones.
DEFAULT_TOKEN_IDS = range(1000, 30000)
WORDS = tuple(
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member "
    "law car city name team minute idea body back parent face level office door health person art "
    "war history party result change morning reason research girl moment air teacher force".split()
)


@dataclass(frozen=True, slots=True)
class PromptShape:
    """How long the prompts are; the first `shared_prefix_tokens` are the same in all of them."""

    num_tokens: int
    shared_prefix_tokens: int = 0


def token_prompts(
    random: Random, count: int, shape: PromptShape, token_ids: Sequence[int]
) -> list[list[int]]:
    """Random ids. Right after the shared prefix no two prompts are equal, if the ids suffice."""
    prefix = random.choices(token_ids, k=shape.shared_prefix_tokens)
    own = shape.num_tokens - shape.shared_prefix_tokens
    if count <= len(token_ids):
        starts = random.sample(token_ids, count)
    else:
        starts = random.choices(token_ids, k=count)
    return [
        [*prefix, *[start][:own], *random.choices(token_ids, k=max(own - 1, 0))] for start in starts
    ]


def text_prompts(
    random: Random, count: int, shape: PromptShape, tokenizer: Tokenizer | None = None
) -> list[str]:
    """Random common words, cut to the exact number of tokens if there is a tokenizer."""
    prefix = random.choices(WORDS, k=shape.shared_prefix_tokens)
    own = shape.num_tokens - shape.shared_prefix_tokens
    texts = [" ".join([*prefix, *random.choices(WORDS, k=own)]) for _ in range(count)]
    return (
        texts if tokenizer is None else [cut(text, shape.num_tokens, tokenizer) for text in texts]
    )


def cut(text: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """A word is at least one token, so the text is long enough and only ever loses its end."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return tokenizer.decode(ids[:num_tokens], skip_special_tokens=False)


def ordinary_token_ids(tokenizer: Tokenizer) -> list[int]:
    special = tokenizer.get_added_tokens_decoder().keys()
    ids = [i for i in range(tokenizer.get_vocab_size(with_added_tokens=True)) if i not in special]
    if not ids:
        raise ConfigurationError("the tokenizer has special tokens only")
    return ids


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json, or the one in a model's folder."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigurationError(f"no tokenizer at {file}")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for whatever is wrong inside
        raise ConfigurationError(f"{file} is not a tokenizer: {error}") from error
