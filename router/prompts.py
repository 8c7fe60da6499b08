"""What to generate from: the forms of `prompt`, chat messages, and their limits."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from segue.cluster.errors import InvalidRequest
from segue.router.api_types import MAX_PARTS, MAX_SEQUENCES, ChatBody, ChatMessage, TokenizeBody
from segue.router.chat_template import RESERVED_NAMES
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
    return _encode(prompt, add_special_tokens, model, "prompt")


def encode_chat(body: ChatBody | TokenizeBody, model: TextModel) -> tuple[int, ...]:
    """Render the messages and tokenize; the template has written the special tokens already."""
    template = model.chat_template
    if template is None:
        raise InvalidRequest(
            f"the model {model.card.id} has no chat template; use /v1/completions",
            param="messages",
        )
    extra = _template_variables(body)
    resume = body.continue_final_message or False
    if resume and body.add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other",
            param="continue_final_message",
        )
    starts = not resume if body.add_generation_prompt is None else body.add_generation_prompt
    _check_parts(body.messages or ())
    messages = [_template_message(m, i) for i, m in enumerate(body.messages or ())]
    num_bytes = sum(len(message["content"].encode()) for message in messages)
    model.tokenizer.check_size(num_bytes, model.card.max_model_len, "messages")
    text = template.render(
        messages, add_generation_prompt=starts, continue_final_message=resume, extra=extra
    )
    return _encode(text, body.add_special_tokens or False, model, "messages")


def _encode(text: str, add_special_tokens: bool, model: TextModel, param: str) -> tuple[int, ...]:
    token_ids = model.tokenizer.encode(
        text,
        add_special_tokens=add_special_tokens,
        max_tokens=model.card.max_model_len,
        param=param,
    )
    # A tokenizer may have tokens that were added without widening the model.
    if token_ids and max(token_ids) >= model.card.vocab_size:
        raise InvalidRequest(f"{param} holds a special token that the model lacks", param=param)
    return token_ids


def _template_variables(body: ChatBody | TokenizeBody) -> Mapping[str, Any]:
    extra = dict(body.chat_template_kwargs or {})
    if taken := RESERVED_NAMES & extra.keys():
        raise InvalidRequest(
            f"chat_template_kwargs must not set {sorted(taken)[0]}", param="chat_template_kwargs"
        )
    if isinstance(body, ChatBody) and body.reasoning_effort is not None:
        extra.setdefault("reasoning_effort", body.reasoning_effort)
    return extra


def _check_parts(messages: Sequence[ChatMessage]) -> None:
    """Before any of them is looked at."""
    num_parts = 0
    for index, message in enumerate(messages):
        num_parts += len(message.content) if isinstance(message.content, list) else 0
        if num_parts > MAX_PARTS:
            param = f"messages.{index}.content"
            raise InvalidRequest(f"{param}: more than {MAX_PARTS} parts in all", param=param)


def _template_message(message: ChatMessage, index: int) -> dict[str, Any]:
    """A plain dict with text content; what else the client sent is the template's to read."""
    extra = message.model_extra or {}
    fields = {name: value for name, value in extra.items() if value is not None}
    return {**fields, "role": message.role, "content": _content(message, f"messages.{index}")}


def _content(message: ChatMessage, where: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None and message.role == "assistant":
        return ""  # an answer that only called tools
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{where}.content must be text", param=f"{where}.content")
    texts: list[str] = []
    for position, part in enumerate(content):
        path = f"{where}.content.{position}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            shown = f"'{kind[:40]}'" if isinstance(kind, str) else "without a type"
            raise InvalidRequest(f"{path}: content parts {shown} are not supported", param=path)
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{path}.text must be a string", param=path)
        texts.append(part["text"])
    return "\n".join(texts)
