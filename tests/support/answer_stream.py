"""A client of the gateway that keeps every token, when it came, and how the answer ended."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from segue.bench.sse import EventReader

MODEL_ID = "model"  # as the fleets of the fault matrix name theirs


@dataclass(slots=True, eq=False)
class AnswerStream:
    """`error` is what the client was told, or that its connection broke."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    ended: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    def hang_up(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def wait(self, timeout_s: float) -> None:
        """Until it is over; cancelled if that takes longer."""
        assert self.task is not None
        await asyncio.wait({self.task}, timeout=timeout_s)
        if not self.task.done():
            self.error = f"the client gave up after {timeout_s:.0f} s"
            self.hang_up()
        await asyncio.gather(self.task, return_exceptions=True)

    def longest_pause(self, since: float) -> float:
        """The longest wait for the next token, or for the end, that began after `since`."""
        instants = [since, *(at for at in self.times if at > since), self.ended or time.monotonic()]
        return max(b - a for a, b in zip(instants, instants[1:], strict=False))

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = str(event["error"]["message"])
            return
        for choice in event["choices"]:
            tokens = choice.get("token_ids") or []
            self.tokens.extend(tokens)
            self.times.extend([time.monotonic()] * len(tokens))
            self.finish = choice["finish_reason"] or self.finish

    async def _follow(self, url: str, body: dict[str, Any]) -> None:
        reader = EventReader()
        try:
            async with (
                httpx.AsyncClient(timeout=httpx.Timeout(10.0, read=None), verify=False) as client,
                client.stream("POST", f"{url}/v1/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    self.error = str(response.json()["error"]["message"])
                    return
                async for piece in response.aiter_raw():
                    for payload in reader.feed(piece):
                        if payload != b"[DONE]":
                            self._take(json.loads(payload))
                if not self.finish and not self.error:
                    self.error = "the stream ended without a finish reason"
        except httpx.TransportError as error:
            self.error = f"connection lost: {type(error).__name__}"
        finally:
            self.ended = time.monotonic()


def ask(url: str, prompt: Sequence[int], num_tokens: int) -> AnswerStream:
    """Begin a greedy answer of exactly `num_tokens`."""
    body = {
        "model": MODEL_ID,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    answer = AnswerStream()
    answer.task = asyncio.create_task(answer._follow(url, body))
    return answer
