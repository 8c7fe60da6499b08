"""The fuzzer sees what is wrong with an answer; one that sees nothing would pass for ever."""

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from fuzz_client import FuzzClient, Tally
from fuzz_draw import Question

from segue.cluster.request import SamplingParams

QUESTION = Question((1, 2, 3), 3, SamplingParams(temperature=0.0))
EXPECTED = [[10, 11, 12]]


class Gateway(httpx.AsyncBaseTransport):
    """Answers every request in the same way, streamed or whole as it was asked."""

    def __init__(self, tokens: list[int], finish: str | None = "length", done: bool = True) -> None:
        self.tokens = tokens
        self.finish = finish
        self.done = done
        self.status = 200
        self.space = " "
        self.error: dict[str, Any] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        streamed = orjson.loads(await request.aread())["stream"]
        if self.status != 200:
            return httpx.Response(self.status, json={"error": self.error})
        choice = {
            "index": 0,
            "text": self.space.join(map(str, self.tokens)),
            "token_ids": self.tokens,
            "finish_reason": self.finish,
        }
        if not streamed:
            return httpx.Response(200, json={"choices": [choice]})

        async def events() -> AsyncIterator[bytes]:
            yield b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"
            if self.error is not None:
                yield b"data: " + orjson.dumps({"error": self.error}) + b"\n\n"
            if self.done:
                yield b"data: [DONE]\n\n"

        return httpx.Response(200, content=events())


async def judged(*gateways: Gateway, times: int = 12) -> Tally:
    """Ask each of them some times, so that both kinds of answers and some hang-ups occur."""
    tally, texts = Tally(), dict[int, dict[int, str]]()
    for number, gateway in enumerate(gateways):
        client = FuzzClient("http://t", [(QUESTION, EXPECTED)], texts, tally, random.Random(1))
        await client.close()
        client._http = httpx.AsyncClient(transport=gateway)
        for time in range(times):
            await client.ask(f"r{number}-{time}")
        await client.close()
    return tally


async def test_right_answers_are_finished() -> None:
    tally = await judged(Gateway([10, 11, 12]))
    assert not tally.wrong and tally.finished + tally.hung_up == 12 and tally.finished > 6


@pytest.mark.parametrize(
    ("tokens", "finish", "fault"),
    [
        ([10, 99, 12], "length", "token 1 is 99, not 11"),
        ([10, 11], "length", "ended after 2 of 3 tokens"),
        ([10, 11, 12, 13], "length", "4 tokens, not 3"),
        ([10, 11, 12], "stop", "finish_reason stop"),
        ([10, 11, 12], None, "finish_reason None"),
    ],
)
async def test_wrong_answers_are_wrong(tokens: list[int], finish: str | None, fault: str) -> None:
    tally = await judged(Gateway(tokens, finish))
    assert tally.wrong and all(fault in line for line in tally.wrong)


async def test_another_text_of_the_same_tokens_is_wrong() -> None:
    garbled = Gateway([10, 11, 12])
    garbled.space = "?"
    tally = await judged(Gateway([10, 11, 12]), garbled)
    assert tally.wrong and all("another text" in line for line in tally.wrong)


@pytest.mark.parametrize("status", [429, 503])
async def test_not_now_is_an_honest_answer(status: int) -> None:
    gateway = Gateway([])
    gateway.status, gateway.error = status, {"message": "later"}
    tally = await judged(gateway)
    assert not tally.wrong and tally.refused["later"] > 0 and not tally.finished


@pytest.mark.parametrize("status", [400, 500, 504])
async def test_other_errors_are_wrong(status: int) -> None:
    gateway = Gateway([])
    gateway.status, gateway.error = status, {"message": "no"}
    assert (await judged(gateway)).wrong


async def test_a_stream_that_breaks_off_is_wrong() -> None:
    gateway = Gateway([10], None, done=False)
    assert any("without [DONE]" in line for line in (await judged(gateway)).wrong)


async def test_an_error_within_a_stream_is_judged_by_its_code() -> None:
    honest, fault = Gateway([10], None), Gateway([10], None)
    honest.error, fault.error = {"message": "later", "code": 503}, {"message": "no", "code": 500}
    assert not [line for line in (await judged(honest)).wrong if "ended after" not in line]
    assert any("'code': 500" in line for line in (await judged(fault)).wrong)
