"""A client of the fuzzer: asks what it knows the answer to, and judges every token it is told."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from fuzz_draw import REQUEST_SECONDS, Question, draw_extras

from segue.bench.sse import EventReader

HANG_UP_SHARE = 0.15
STREAM_SHARE = 0.7
RETRYABLE = {429, 503}  # "not now": the only refusals of a good request
PATIENCE_SECONDS = REQUEST_SECONDS + 30.0


@dataclass(slots=True)
class Tally:
    """What all clients saw. `refused` are honest refusals; everything in `wrong` is a fault."""

    finished: int = 0
    hung_up: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)  # names of streams of one choice that go on

    @property
    def num_answers(self) -> int:
        return self.finished + self.hung_up


@dataclass(slots=True)
class Answer:
    """As far as it was told."""

    tokens: dict[int, list[int]] = field(default_factory=dict)  # by choice
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None

    def take(self, choices: list[dict[str, Any]]) -> None:
        for choice in choices:
            index = choice["index"]
            self.tokens.setdefault(index, []).extend(choice.get("token_ids") or [])
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            if choice["finish_reason"]:
                self.finishes[index] = choice["finish_reason"]


class FuzzClient:
    def __init__(
        self,
        url: str,
        known: list[tuple[Question, list[list[int]]]],
        texts: dict[int, dict[int, str]],
        tally: Tally,
        source: random.Random,
    ) -> None:
        """`texts`: of each question's choices, as first told whole; shared by all clients."""
        self._url = url
        self._known = known
        self._texts = texts
        self._tally = tally
        self._source = source
        self._num_asked = 0
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(10.0, read=PATIENCE_SECONDS))

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, name: str) -> None:
        """One request, and the verdict."""
        source = self._source
        number = source.randrange(len(self._known))
        question, expected = self._known[number]
        streamed = source.random() < STREAM_SHARE
        body = {**question.body(), **draw_extras(source), "stream": streamed}
        patience = source.random() * 1.5 if source.random() < HANG_UP_SHARE else PATIENCE_SECONDS
        answer = Answer()
        try:
            async with asyncio.timeout(patience):
                await self._post(name, body, answer)
        except TimeoutError:
            if patience == PATIENCE_SECONDS:
                self._tally.wrong.append(f"{name}: no end within {patience:.0f} s")
            else:
                self._tally.hung_up += 1
                self._judge(name, number, answer, expected, whole=False)
            return
        except httpx.TransportError as error:
            self._tally.wrong.append(f"{name}: connection lost: {error!r}")
            return
        finally:
            self._tally.written.discard(name)
        if answer.error is not None:
            self._refused(name, answer.error)
            self._judge(name, number, answer, expected, whole=False)
        else:
            self._tally.finished += 1
            self._judge(name, number, answer, expected, whole=True)

    async def _post(self, name: str, body: dict[str, Any], answer: Answer) -> None:
        url, headers = f"{self._url}/v1/completions", {"X-Request-Id": name}
        async with self._http.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                answer.error = {**response.json()["error"], "code": response.status_code}
                return
            if not body["stream"]:
                await response.aread()
                answer.take(response.json()["choices"])
                return
            reader, done = EventReader(), False
            async for piece in response.aiter_raw():
                for payload in reader.feed(piece):
                    if payload == b"[DONE]":
                        done = True
                        continue
                    event = json.loads(payload)
                    if "error" in event:
                        answer.error = event["error"]
                    else:
                        answer.take(event["choices"])
                        if body["n"] == 1:
                            self._tally.written.add(name)
            if answer.error is None and not done:
                answer.error = {"code": 0, "message": "the stream ended without [DONE]"}

    def _refused(self, name: str, error: dict[str, Any]) -> None:
        if error["code"] in RETRYABLE:
            self._tally.refused[str(error["message"])[:100]] += 1
        else:
            self._tally.wrong.append(f"{name}: error {error}")

    def _judge(
        self, name: str, number: int, answer: Answer, expected: list[list[int]], *, whole: bool
    ) -> None:
        question = self._known[number][0]
        found = [
            f"{name}: question {number} ({len(question.prompt)} tokens, {question.sampling}), "
            f"choice {index}: {fault}"
            for index, tokens in enumerate(expected)
            if (fault := _fault(answer, index, tokens, whole=whole))
        ]
        if whole and not found:
            texts = self._texts.setdefault(number, answer.texts)
            if answer.texts != texts:
                found.append(f"{name}: question {number}: the same tokens, another text")
        self._tally.wrong += found


def _fault(answer: Answer, index: int, tokens: list[int], *, whole: bool) -> str:
    """What is wrong with one choice; empty if nothing is."""
    told = answer.tokens.get(index, [])
    for position, (one, other) in enumerate(zip(told, tokens, strict=False)):
        if one != other:
            return f"token {position} is {one}, not {other}"
    if len(told) > len(tokens):
        return f"{len(told)} tokens, not {len(tokens)}"
    if whole and (len(told), answer.finishes.get(index)) != (len(tokens), "length"):
        ending = f"finish_reason {answer.finishes.get(index)}"
        return f"ended after {len(told)} of {len(tokens)} tokens with {ending}"
    return ""
