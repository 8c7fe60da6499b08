"""Reads one streamed answer of the OpenAI API, event by event, and judges it at its end."""

from typing import Any

import orjson

from segue.bench.measurement import Failure, Fault

TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls")  # of a chat delta
MAX_DETAIL = 200


class StreamReading:
    """Everything one stream has said so far. Knows no clock: instants are given."""

    def __init__(self) -> None:
        self.chunks_s: list[float] = []
        self.finish_s: float | None = None
        self.done_s: float | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.error: str | None = None

    def observe(self, payload: bytes, at_s: float) -> None:
        """Take in one event. Raises ValueError if it is not the protocol."""
        if payload == b"[DONE]":
            self.done_s = at_s
            return
        event = orjson.loads(payload)
        if not isinstance(event, dict):
            raise ValueError("an event that is no JSON object")
        error = event.get("error") or (event if event.get("object") == "error" else None)
        if error and self.error is None:
            self.error = str(error.get("message") if isinstance(error, dict) else error)
        for choice in event.get("choices") or ():
            self._observe_choice(choice, at_s)
        if usage := event.get("usage"):
            self.prompt_tokens = int(usage["prompt_tokens"])
            self.output_tokens = int(usage["completion_tokens"])

    def _observe_choice(self, choice: dict[str, Any], at_s: float) -> None:
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(field) for field in TEXT_FIELDS):
            self.chunks_s.append(at_s)
        if choice.get("finish_reason") and self.finish_s is None:
            self.finish_s = at_s

    def verdict(self, wanted_tokens: int) -> Failure | None:
        """Judge the stream after its end: None only for a whole answer of the wanted length."""
        if self.error is not None:
            return Failure(Fault.STREAM_ERROR, self.error[:MAX_DETAIL])
        if self.finish_s is None:
            return Failure(Fault.TRUNCATED, f"no finish reason after {len(self.chunks_s)} chunks")
        if self.done_s is None:
            return Failure(Fault.TRUNCATED, "no [DONE] after the finish reason")
        if self.output_tokens is None:
            return Failure(Fault.NO_USAGE, "the server sent no usage; tokens cannot be counted")
        if self.output_tokens != wanted_tokens:
            detail = f"{self.output_tokens} tokens instead of {wanted_tokens}"
            return Failure(Fault.WRONG_LENGTH, detail)
        return None
