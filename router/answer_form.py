"""The two shapes of answers, completion and chat, as bytes: whole bodies and stream chunks.

Chunks are cut from prebuilt bytes: a token costs one formatting and one JSON string, no objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from segue.cluster.request import FinishReason

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one answer repeat."""

    request_id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished sample."""

    index: int
    text: str
    finish: FinishReason
    stop_reason: str | int | None
    token_ids: Sequence[int] | None  # None: not asked for
    prompt_token_ids: Sequence[int] | None


class AnswerForm(Protocol):
    def opening(self, index: int, prompt: Sequence[int] | None, usage: bytes) -> bytes:
        """What is sent when the first output of a choice arrives, before it."""
        ...

    def delta(self, index: int, text: str, tokens: Sequence[int] | None, usage: bytes) -> bytes: ...

    def final(
        self,
        index: int,
        finish: FinishReason,
        stop_reason: str | int | None,
        tokens: Sequence[int] | None,
        usage: bytes,
    ) -> bytes:
        """The one chunk of a choice with a finish reason; it has no text."""
        ...

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk after all choices."""
        ...

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> bytes: ...


class CompletionForm:
    def __init__(self, envelope: Envelope) -> None:
        self._head = _head(envelope, "cmpl-", "text_completion")
        self._chunk = b"data: " + self._head + b',"choices":['

    def opening(self, index: int, prompt: Sequence[int] | None, usage: bytes) -> bytes:
        if prompt is None:
            return b""
        ids = b',"prompt_token_ids":' + orjson.dumps(list(prompt))
        return self._text(index, b'""', b"null", ids + b',"token_ids":[]', usage)

    def delta(self, index: int, text: str, tokens: Sequence[int] | None, usage: bytes) -> bytes:
        return self._text(index, orjson.dumps(text), b"null", _token_ids(tokens), usage)

    def final(
        self,
        index: int,
        finish: FinishReason,
        stop_reason: str | int | None,
        tokens: Sequence[int] | None,
        usage: bytes,
    ) -> bytes:
        extra = b',"stop_reason":%b%b' % (orjson.dumps(stop_reason), _token_ids(tokens))
        return self._text(index, b'""', b'"%b"' % finish.value.encode(), extra, usage)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._chunk, orjson.dumps(usage))

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> bytes:
        bodies: list[dict[str, Any]] = []
        for choice in choices:
            body: dict[str, Any] = {"index": choice.index, "text": choice.text, "logprobs": None}
            body |= {"finish_reason": choice.finish.value, "stop_reason": choice.stop_reason}
            if choice.token_ids is not None:
                body["token_ids"] = choice.token_ids
                body["prompt_token_ids"] = choice.prompt_token_ids
            bodies.append(body)
        return _whole(self._head, bodies, usage, b"")

    def _text(self, index: int, text: bytes, finish: bytes, extra: bytes, usage: bytes) -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b%b}]%b}\n\n' % (
            *(self._chunk, index, text, finish, extra, usage),
        )


class ChatForm:
    def __init__(self, envelope: Envelope) -> None:
        self._head = _head(envelope, "chatcmpl-", "chat.completion")
        chunk_head = _head(envelope, "chatcmpl-", "chat.completion.chunk")
        self._chunk = b"data: " + chunk_head + b',"choices":['

    def opening(self, index: int, prompt: Sequence[int] | None, usage: bytes) -> bytes:
        if prompt is not None:
            usage = b',"prompt_token_ids":%b%b' % (orjson.dumps(list(prompt)), usage)
        return self._delta(index, b'{"role":"assistant","content":""}', b"null", b"", usage)

    def delta(self, index: int, text: str, tokens: Sequence[int] | None, usage: bytes) -> bytes:
        content = b'{"content":%b}' % orjson.dumps(text)
        return self._delta(index, content, b"null", _token_ids(tokens), usage)

    def final(
        self,
        index: int,
        finish: FinishReason,
        stop_reason: str | int | None,
        tokens: Sequence[int] | None,
        usage: bytes,
    ) -> bytes:
        extra = b',"stop_reason":%b%b' % (orjson.dumps(stop_reason), _token_ids(tokens))
        return self._delta(index, b"{}", b'"%b"' % finish.value.encode(), extra, usage)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._chunk, orjson.dumps(usage))

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> bytes:
        bodies: list[dict[str, Any]] = []
        tail = b""
        for choice in choices:
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            body: dict[str, Any] = {"index": choice.index, "message": message, "logprobs": None}
            body |= {"finish_reason": choice.finish.value, "stop_reason": choice.stop_reason}
            if choice.token_ids is not None:
                body["token_ids"] = choice.token_ids
                tail = b',"prompt_token_ids":' + orjson.dumps(choice.prompt_token_ids)
            bodies.append(body)
        return _whole(self._head, bodies, usage, tail)

    def _delta(self, index: int, delta: bytes, finish: bytes, extra: bytes, usage: bytes) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b%b}]%b}\n\n' % (
            *(self._chunk, index, delta, finish, extra, usage),
        )


def error_frame(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)


def usage_member(usage: dict[str, Any] | None) -> bytes:
    return b',"usage":' + orjson.dumps(usage)


def _head(envelope: Envelope, prefix: str, kind: str) -> bytes:
    fields = {
        "id": prefix + envelope.request_id,
        "object": kind,
        "created": envelope.created,
        "model": envelope.model,
    }
    return orjson.dumps(fields)[:-1]


def _token_ids(tokens: Sequence[int] | None) -> bytes:
    return b"" if tokens is None else b',"token_ids":' + orjson.dumps(list(tokens))


def _whole(head: bytes, choices: list[dict[str, Any]], usage: dict[str, Any], tail: bytes) -> bytes:
    body = b'%b,"choices":%b,"usage":%b,"system_fingerprint":null%b}'
    return body % (head, orjson.dumps(choices), orjson.dumps(usage), tail)
