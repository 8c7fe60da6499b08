"""The bodies of the public API as pydantic models: types and ranges of single fields.

Types are strict (a bool is no int, "3" is no number). Unknown fields are let through, since SDKs
add their own; known fields that Segue does not implement are the business of `unsupported.py`.
What needs the model's limits or two fields at once is checked in `request_plan.py`.
"""

from collections.abc import Collection
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segue.cluster.errors import InvalidRequest
from segue.cluster.retention import DEFAULT_PRIORITY, MAX_PRIORITY, MAX_RANGES
from segue.router.unknown_fields import refuse_misspelt

MAX_SEQUENCES = 128  # prompts x n of one request
MAX_STOP_STRINGS = 32
MAX_STOP_CHARS = 1024
MAX_MESSAGES = 4096
MAX_PARTS = 4096  # of the contents of all messages
MAX_TOOL_CALLS = 128  # of a message
MAX_DETOKENIZE_TOKENS = 2**17
REQUEST_ID_PATTERN = r"^[!-~]{1,128}$"

_Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_TokenId = Annotated[int, Field(ge=0)]
_Tokens = Annotated[int, Field(ge=1, lt=2**31)]
_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Body = TypeVar("Body", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )


class _Exact(_Strict):
    """Fields of our own: a misspelt one is refused, since no SDK adds any."""

    model_config = ConfigDict(extra="forbid")


_Priority = Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
_Milliseconds = Annotated[int, Field(ge=1, lt=2**53)]


class TokenRangeRetention(_Exact):
    """Prompt tokens [token_start, token_end); no end: to the prompt's."""

    token_start: Annotated[int, Field(ge=0, lt=2**31)]
    token_end: _Tokens | None = None
    priority: _Priority
    duration_ms: _Milliseconds | None = None


class KVCacheRetention(_Exact):
    """Names and meaning of TensorRT-LLM's KvCacheRetentionConfig."""

    token_range_retention_configs: Annotated[
        list[TokenRangeRetention], Field(max_length=MAX_RANGES)
    ] = []
    decode_retention_priority: _Priority = DEFAULT_PRIORITY
    decode_duration_ms: _Milliseconds | None = None


class StreamOptions(_Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(_Strict):
    """What completions and chat have in common. None always means: the default."""

    model: str | None = None
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    # Checked in request_plan: a union would name its branches in the message.
    stop: Any = None
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: _Int32 | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    kv_cache_retention_config: KVCacheRetention | None = None
    session_id: Annotated[str, Field(max_length=256)] | None = None
    return_token_ids: bool | None = None
    user: str | None = None


class CompletionBody(GenerationBody):
    prompt: Any = None  # str, list[str], list[int] or list[list[int]]: see request_plan


class ChatMessage(_Strict):
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Any = None  # text, text parts, or nothing: see conversation


_Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class ChatBody(GenerationBody):
    messages: _Messages
    max_completion_tokens: _Tokens | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeBody(_Strict):
    model: str | None = None
    prompt: str | None = None
    messages: _Messages | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(_Strict):
    model: str | None = None
    tokens: Annotated[list[_TokenId], Field(max_length=MAX_DETOKENIZE_TOKENS)]


def parse_body(
    kind: type[Body], data: dict[str, Any], known_elsewhere: Collection[str] = ()
) -> Body:
    """Raises InvalidRequest that names the field: its value is wrong, or it is a misspelt name.

    `known_elsewhere`: names that are no fields of `kind`, and no misspelling of any either.
    """
    try:
        body = kind.model_validate(data)
    except ValidationError as error:
        # Without the input: an answer must not echo what may be megabytes.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])[:200]
        raise InvalidRequest(f"{field}: {first['msg']}", param=field or None) from None
    if body.model_extra:
        unknown = [name for name in body.model_extra if name not in known_elsewhere]
        refuse_misspelt(unknown, [*kind.model_fields, *known_elsewhere])
    return body


def request_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """What /openapi.json says of a body that the routes read themselves."""
    schema = kind.model_json_schema()
    definitions: dict[str, Any] = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, list):
            return [inlined(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inlined(definitions[value["$ref"].rsplit("/", 1)[1]])
        return {key: inlined(item) for key, item in value.items()}

    content = {"application/json": {"schema": inlined(schema)}}
    return {"requestBody": {"required": True, "content": content}}
