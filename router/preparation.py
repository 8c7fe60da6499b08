"""From the bytes of a body to what is to be done: the work before a request that grows with it.

All of it runs in a `text_process`, none on an event loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter

from segue.cluster.errors import InvalidRequest, ModelNotFound, SegueError
from segue.router.api_types import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
    parse_body,
)
from segue.router.conversation import encode_chat
from segue.router.prompts import check_token_ids, encode_prompt, read_prompts
from segue.router.request_body import parse_object
from segue.router.request_plan import RequestPlan, check_model, check_options, plan_requests
from segue.router.text_model import TextModel
from segue.router.unknown_fields import ignored_fields
from segue.router.unsupported import (
    UNSUPPORTED_CHAT,
    UNSUPPORTED_COMPLETION,
    refuse_unsupported,
)

Body = TypeVar("Body", bound=GenerationBody)
Prompts = list[tuple[int, ...]]
MAX_REFUSAL_CHARS = 2000
_KINDS = {kind.__name__: kind for kind in (InvalidRequest, ModelNotFound)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as it crosses from one process to another."""

    kind: str
    message: str
    param: str | None

    @classmethod
    def of(cls, error: SegueError) -> "Refusal":
        kind = type(error).__name__
        known = kind if kind in _KINDS else InvalidRequest.__name__
        return cls(known, error.message[:MAX_REFUSAL_CHARS], error.param)

    def error(self) -> SegueError:
        return _KINDS[self.kind](self.message, param=self.param)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of a body: a plan, or else a refusal; the rest is told to the client anyhow."""

    plan: RequestPlan | None
    refusal: Refusal | None = None
    request_id: str | None = None
    ignored: str | None = None  # fields that nobody knows, as a header lists them


@dataclass(frozen=True, slots=True)
class _Packed:
    """Each prompt once, however many samples of it are asked for."""

    prepared: Prepared
    prompts: Prompts


_CODEC = TypeAdapter(_Packed)


def pack(prepared: Prepared) -> bytes:
    plan = prepared.plan
    if plan is None:
        return _CODEC.dump_json(_Packed(prepared, []))
    bare = tuple(replace(request, prompt_token_ids=()) for request in plan.requests)
    light = replace(prepared, plan=replace(plan, requests=bare))
    return _CODEC.dump_json(_Packed(light, plan.prompts))


def unpack(data: bytes) -> Prepared:
    packed = _CODEC.validate_json(data)
    prepared, plan = packed.prepared, packed.prepared.plan
    if plan is None:
        return prepared
    whole = tuple(
        replace(request, prompt_token_ids=packed.prompts[index // plan.n])
        for index, request in enumerate(plan.requests)
    )
    return replace(prepared, plan=replace(plan, requests=whole))


def prepare_completion(model: TextModel, data: bytes) -> Prepared:
    return _prepare(model, data, CompletionBody, UNSUPPORTED_COMPLETION, _completion_prompts)


def prepare_chat(model: TextModel, data: bytes) -> Prepared:
    return _prepare(model, data, ChatBody, UNSUPPORTED_CHAT, _chat_prompts)


def _completion_prompts(body: CompletionBody, model: TextModel) -> Prompts:
    special = body.add_special_tokens is not False
    prompts = read_prompts(body.prompt, body.n or 1, model.card)
    return [encode_prompt(prompt, special, model) for prompt in prompts]


def _chat_prompts(body: ChatBody, model: TextModel) -> Prompts:
    return [encode_chat(body, model)]


def _prepare(
    model: TextModel,
    data: bytes,
    kind: type[Body],
    unsupported: Mapping[str, tuple[Any, ...]],
    prompts_of: Callable[[Body, TextModel], Prompts],
) -> Prepared:
    request_id = ignored = None
    try:
        fields = parse_object(data)
        refuse_unsupported(fields, unsupported)
        body = parse_body(kind, fields, unsupported)
        # The client learns which of its fields nobody here knows.
        if unknown := [name for name in body.model_extra or () if name not in unsupported]:
            ignored = ignored_fields(unknown)
        check_options(body, model.card)
        request_id = body.request_id
        plan = plan_requests(body, prompts_of(body, model), model.card)
    except SegueError as error:
        return Prepared(None, Refusal.of(error), request_id, ignored)
    return Prepared(plan, None, request_id, ignored)


def tokenize(model: TextModel, data: bytes) -> bytes:
    """The answer of /tokenize. Raises SegueError."""
    body = parse_body(TokenizeBody, parse_object(data))
    check_model(body.model, model.card)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.prompt is None:
        tokens = encode_chat(body, model)
    else:
        tokens = encode_prompt(body.prompt, body.add_special_tokens is not False, model)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": model.card.max_model_len,
        "tokens": tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = model.tokenizer.token_strings(tokens)
    return orjson.dumps(answer)


def detokenize(model: TextModel, data: bytes) -> bytes:
    """The answer of /detokenize. Raises SegueError."""
    body = parse_body(DetokenizeBody, parse_object(data))
    check_model(body.model, model.card)
    if body.tokens:
        check_token_ids(body.tokens, model.card, "tokens")
    return orjson.dumps({"prompt": model.tokenizer.decode(body.tokens)})


JOBS: dict[str, Callable[[TextModel, bytes], bytes]] = {
    "completion": lambda model, data: pack(prepare_completion(model, data)),
    "chat": lambda model, data: pack(prepare_chat(model, data)),
    "tokenize": tokenize,
    "detokenize": detokenize,
}
