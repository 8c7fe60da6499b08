"""What to generate from: the four forms of `prompt`, and their limits."""

from collections.abc import Sequence
from typing import Any, TypeGuard

from segue.cluster.errors import InvalidRequest
from segue.router.api_types import MAX_SEQUENCES
from segue.router.generation import ModelCard
from segue.router.text_model import TextModel


def read_prompts(prompt: Any, n: int, card: ModelCard) -> list[str | tuple[int, ...]]:
    """Tell the four forms apart: str, list[str], list[int], list[list[int]].

    The number of sequences is bounded before anything is expanded.
    """
    if isinstance(prompt, str):
        prompts: Sequence[Any] = [prompt]
    elif not isinstance(prompt, list) or not prompt:
        raise InvalidRequest("prompt must be a non-empty string or list", param="prompt")
    else:
        prompts = [prompt] if isinstance(prompt[0], int) else prompt
    if len(prompts) * n > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{len(prompts)} prompts with n={n} are more than {MAX_SEQUENCES} sequences",
            param="prompt" if len(prompts) > 1 else "n",
        )
    kind = type(prompts[0])
    if any(type(item) is not kind for item in prompts):
        raise InvalidRequest("prompt must not mix strings and token ids", param="prompt")
    return [_read_prompt(item, card) for item in prompts]


def _read_prompt(item: Any, card: ModelCard) -> str | tuple[int, ...]:
    if isinstance(item, str):
        if not item:
            raise InvalidRequest("prompt must not be empty", param="prompt")
        return item
    if isinstance(item, list) and len(item) >= card.max_model_len:
        raise InvalidRequest(  # before millions of ids are looked at one by one
            f"prompt has {len(item)} token ids; the model's limit of {card.max_model_len} tokens "
            "includes at least one of the answer",
            param="prompt",
        )
    if not _is_ints(item):
        raise InvalidRequest("prompt must hold strings or lists of token ids", param="prompt")
    check_token_ids(item, card, "prompt")
    return tuple(item)


def check_token_ids(token_ids: Sequence[int], card: ModelCard, param: str) -> None:
    if not token_ids:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    if min(token_ids) < 0 or max(token_ids) >= card.vocab_size:
        raise InvalidRequest(
            f"{param}: token ids must be from 0 to {card.vocab_size - 1}", param=param
        )


def _is_ints(item: Any) -> TypeGuard[list[int]]:
    return isinstance(item, list) and all(type(token) is int for token in item)


def encode_prompt(
    prompt: str | tuple[int, ...], add_special_tokens: bool, model: TextModel
) -> tuple[int, ...]:
    """A control token that a raw prompt spells out is one: its client writes the whole prompt."""
    if not isinstance(prompt, str):
        return prompt
    token_ids = model.tokenizer.encode(
        prompt,
        add_special_tokens=add_special_tokens,
        max_tokens=model.card.max_model_len,
        param="prompt",
    )
    check_vocabulary(token_ids, model.card, "prompt")
    return token_ids


def check_vocabulary(token_ids: Sequence[int], card: ModelCard, param: str) -> None:
    """A tokenizer may have tokens that were added without widening the model."""
    if token_ids and max(token_ids) >= card.vocab_size:
        raise InvalidRequest(f"{param} holds a special token that the model lacks", param=param)
