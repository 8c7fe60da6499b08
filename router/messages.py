"""Chat messages in the one form that templates expect: known roles, text, parsed tool calls."""

from collections.abc import Sequence, Set
from typing import Any

import orjson

from segue.cluster.errors import InvalidRequest
from segue.router.api_types import MAX_PARTS, MAX_TOOL_CALLS, ChatMessage

COMMON_ROLES = frozenset({"system", "user", "assistant", "tool"})
Message = dict[str, Any]


def read_messages(messages: Sequence[ChatMessage], named_roles: Set[str]) -> list[Message]:
    """Raises InvalidRequest that names the message. `named_roles`: those of the template."""
    _check_parts(messages)
    return [_read(message, index, named_roles) for index, message in enumerate(messages)]


def _read(message: ChatMessage, index: int, named_roles: Set[str]) -> Message:
    """What else the client has sent is the template's to read."""
    where = f"messages.{index}"
    extra = message.model_extra or {}
    fields = {name: value for name, value in extra.items() if value is not None}
    if "function_call" in fields:
        param = f"{where}.function_call"
        raise InvalidRequest(f"{param} is not implemented; use tool_calls", param=param)
    if calls := fields.pop("tool_calls", None):
        fields["tool_calls"] = _tool_calls(calls, message.role, where)
    return {
        **fields,
        "role": _role(message.role, f"{where}.role", named_roles),
        "content": _content(message, where),
    }


def _role(role: str, param: str, named_roles: Set[str]) -> str:
    if role in named_roles or role in COMMON_ROLES:
        return role
    if role == "developer":
        return "system"  # which it was called before
    known = ", ".join(sorted(COMMON_ROLES | {"developer"}))
    raise InvalidRequest(f"{param}: '{role}' is not known; known are {known}", param=param)


def _tool_calls(calls: Any, role: str, where: str) -> list[Message]:
    param = f"{where}.tool_calls"
    if role != "assistant":
        raise InvalidRequest(f"{param}: only messages of the assistant have them", param=param)
    if not isinstance(calls, list) or len(calls) > MAX_TOOL_CALLS:
        raise InvalidRequest(f"{param} must be a list of at most {MAX_TOOL_CALLS}", param=param)
    return [_tool_call(call, f"{param}.{index}") for index, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> Message:
    """Clients send the arguments as a string of JSON; templates read them as a mapping."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise InvalidRequest(f"{where} must be a call of a function", param=where)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        param = f"{where}.function.name"
        raise InvalidRequest(f"{param} must be a string", param=param)
    param = f"{where}.function.arguments"
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from None
    if not isinstance(arguments, dict | None):
        raise InvalidRequest(f"{param} must be a JSON object", param=param)
    return {**call, "type": "function", "function": {**function, "arguments": arguments or {}}}


def _check_parts(messages: Sequence[ChatMessage]) -> None:
    """Before any of them is looked at."""
    num_parts = 0
    for index, message in enumerate(messages):
        num_parts += len(message.content) if isinstance(message.content, list) else 0
        if num_parts > MAX_PARTS:
            param = f"messages.{index}.content"
            raise InvalidRequest(f"{param}: more than {MAX_PARTS} parts in all", param=param)


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
