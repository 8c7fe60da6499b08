"""From a chat to token ids: messages, the model's template, and whose the control tokens are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from segue.cluster.errors import InvalidRequest
from segue.router.api_types import ChatBody, TokenizeBody
from segue.router.chat_template import RESERVED_NAMES, ChatTemplate
from segue.router.control_tokens import ControlTokens
from segue.router.messages import Message, read_messages
from segue.router.prompts import check_vocabulary
from segue.router.text_model import TextModel

_OTHER_TEXT = " and something else"


def encode_chat(body: ChatBody | TokenizeBody, model: TextModel) -> tuple[int, ...]:
    """Raises InvalidRequest. The template has written the special tokens already."""
    template, card = model.chat_template, model.card
    if template is None:
        raise InvalidRequest(
            f"the model {card.id} has no chat template; use /v1/completions", param="messages"
        )
    resume = body.continue_final_message or False
    if resume and body.add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other",
            param="continue_final_message",
        )
    messages = read_messages(body.messages or (), template.named_roles)
    num_bytes = sum(len(message["content"].encode()) for message in messages)
    model.tokenizer.check_size(num_bytes, card.max_model_len, "messages")
    rendering = _Rendering(
        template,
        add_generation_prompt=(
            not resume if body.add_generation_prompt is None else body.add_generation_prompt
        ),
        continue_final_message=resume,
        extra=model.control.guard(_template_variables(body), "chat_template_kwargs"),
    )
    guarded = [_guarded(message, i, model.control) for i, message in enumerate(messages)]
    text = rendering.of(guarded)
    rendering.check_nothing_is_dropped(guarded, text)
    num_bytes = len(model.control.plain(text).encode())
    model.tokenizer.check_size(num_bytes, card.max_model_len, "messages")
    token_ids = model.control.encode(text, body.add_special_tokens or False)
    check_vocabulary(token_ids, card, "messages")
    return token_ids


def _guarded(message: Message, index: int, control: ControlTokens) -> Message:
    """The role is one of a few known words, which a template may make a control token of."""
    guarded: Message = control.guard(message, f"messages.{index}")
    return {**guarded, "role": message["role"]}


def _template_variables(body: ChatBody | TokenizeBody) -> Mapping[str, Any]:
    extra = dict(body.chat_template_kwargs or {})
    if taken := RESERVED_NAMES & extra.keys():
        raise InvalidRequest(
            f"chat_template_kwargs must not set {sorted(taken)[0]}", param="chat_template_kwargs"
        )
    if isinstance(body, ChatBody) and body.reasoning_effort is not None:
        extra.setdefault("reasoning_effort", body.reasoning_effort)
    return extra


@dataclass(frozen=True, slots=True)
class _Rendering:
    """One conversation's: the template with all that is not a message."""

    template: ChatTemplate
    add_generation_prompt: bool
    continue_final_message: bool
    extra: Mapping[str, Any] = field(default_factory=dict)

    def of(self, messages: list[Message]) -> str:
        return self.template.render(
            messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            extra=self.extra,
        )

    def check_nothing_is_dropped(self, messages: list[Message], text: str) -> None:
        """Raises InvalidRequest for a message that makes no odds: with other words in it the
        template writes the same `text`. What it has once shown it is not asked for again."""
        shown = self.template.shown
        for index, message in enumerate(messages):
            role, where = message["role"], f"messages.{index}"
            place = f"{role}, {'first' if index == 0 else 'later'}"
            if role not in ("user", "assistant") and place not in shown:
                other = {**message, "content": message["content"] + _OTHER_TEXT}
                if self._same(messages, index, other, text):
                    told = f"{where}.role: the chat template has no place for '{role}' there"
                    raise InvalidRequest(told, param=f"{where}.role")
                shown.add(place)
            if "tool_calls" in message and "tool calls" not in shown:
                other = {**message, "tool_calls": [_other_call(c) for c in message["tool_calls"]]}
                if self._same(messages, index, other, text):
                    told = f"{where}.tool_calls: the chat template does not know tool calls"
                    raise InvalidRequest(told, param=f"{where}.tool_calls")
                shown.add("tool calls")

    def _same(self, messages: list[Message], index: int, other: Message, text: str) -> bool:
        try:
            return self.of([*messages[:index], other, *messages[index + 1 :]]) == text
        except InvalidRequest:
            return False  # it has looked at it


def _other_call(call: Message) -> Message:
    function = call["function"]
    return {**call, "function": {**function, "name": function["name"] + "_else"}}
