"""Renders messages with the model's own chat template, under the contract of Hugging Face.

The template comes with the model and is trusted as far as the sandbox goes; the messages come
from anyone, so a rendering is bounded in time and size and whatever it raises is a 400. The
work holds the GIL and may take all of that time: nothing for an event loop.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Compare, Const, List, Node, Tuple
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from segue.cluster.errors import ConfigurationError, InvalidRequest
from segue.router.time_limit import TimeIsUp, interrupted_after

RENDER_SECONDS = 5.0
MAX_OUTPUT_CHARS = 16 * 2**20
_CONTINUE_MARK = "\ue000segue-continue\ue001"  # private use: stands where the answer goes on
RESERVED_NAMES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"bos_token", "eos_token", "chat_template", "tokenize"}
)


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.named_roles = _compared_words(environment.parse(source))
        except TemplateError as error:
            raise ConfigurationError(f"the chat template is not valid: {error}") from error
        self.shown: set[str] = set()  # what is known to make odds to it
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises InvalidRequest, whatever goes wrong: the template can only fail on its data.

        In the main thread of a process only.
        """
        shown = [dict(message) for message in messages]
        if continue_final_message:
            shown[-1]["content"] += _CONTINUE_MARK
        variables = {
            **(extra or {}),
            **self._special_tokens,
            "messages": shown,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with interrupted_after(RENDER_SECONDS):
                text = self._run(variables)
        except TimeIsUp:
            raise _too_much("time") from None
        return _cut_at_mark(text) if continue_final_message else text

    def _run(self, variables: dict[str, Any]) -> str:
        parts: list[str] = []
        num_chars = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                num_chars += len(part)
                if num_chars > MAX_OUTPUT_CHARS:
                    raise _too_much("room")
        except InvalidRequest:
            raise
        except MemoryError:
            raise _too_much("room") from None
        except Exception as error:
            # Not only TemplateError: `'a' + none` in a template is a plain TypeError.
            message = f"the chat template refused the messages: {error}"
            raise InvalidRequest(message, param="messages") from error
        return "".join(parts)


def load_chat_template(model_folder: Path) -> ChatTemplate | None:
    """The template of `chat_template.jinja`, else of tokenizer_config.json, else None."""
    config = _read_json(model_folder / "tokenizer_config.json")
    path = model_folder / "chat_template.jinja"
    source: Any = path.read_text(encoding="utf-8") if path.is_file() else None
    source = source or config.get("chat_template")
    if isinstance(source, list):  # several by name
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    if not source:
        return None
    special = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token")}
    return ChatTemplate(source, special)


def _compared_words(template: Node) -> frozenset[str]:
    """The words that it compares something with: among them the roles that it knows."""
    found: set[str] = set()
    for compare in template.find_all(Compare):
        for side in (compare.expr, *(operand.expr for operand in compare.ops)):
            items = side.items if isinstance(side, List | Tuple) else [side]
            found |= {item.value for item in items if isinstance(item, Const)}
    return frozenset(word for word in found if isinstance(word, str))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path.name} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _token_text(token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _too_much(what: str) -> InvalidRequest:
    return InvalidRequest(f"rendering the chat template takes too much {what}", param="messages")


def _cut_at_mark(text: str) -> str:
    head, mark, _ = text.rpartition(_CONTINUE_MARK)
    if not mark:
        raise InvalidRequest(
            "the chat template does not end with the final message",
            param="continue_final_message",
        )
    return head


class _GenerationTag(Extension):
    """`{% generation %}` marks answers for training; when serving only its body counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
