"""What a stream looks like on the wire: frames, order, held-back text, idles and failures."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.router.conftest import (
    EOS,
    Gateway,
    Step,
    endless,
    eventually,
    gateway_config,
    saying,
    serving,
)

from segue.cluster.errors import AttemptFailed, DeadlineExceeded, FailureKind
from segue.cluster.request import FinishReason
from segue.router.tokenizer import TextTokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")


def frames(text: str) -> list[Any]:
    """The JSON of each data frame, comments as they are; checks the framing itself."""
    assert text.endswith("\n\n")
    parsed: list[Any] = []
    for frame in text[:-2].split("\n\n"):
        assert "\n" not in frame
        if frame.startswith(":"):
            parsed.append(frame)
            continue
        assert frame.startswith("data: ")
        data = frame.removeprefix("data: ")
        parsed.append(data if data == "[DONE]" else orjson.loads(data))
    return parsed


def ids_of(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode(text, add_special_tokens=False, max_tokens=2048, param="text")


async def test_chat_chunks(gateway: Gateway) -> None:
    gateway.play(saying(19556, 17, EOS, delay=0.02))
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    *chunks, done = frames(response.text)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": "!"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert choices[-1]["stop_reason"] is None
    assert all("usage" not in chunk for chunk in chunks)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk["id"] == "chatcmpl-" + response.headers["x-request-id"] for chunk in chunks)


@pytest.mark.parametrize("chat", [False, True])
async def test_streamed_equals_not_streamed(
    gateway: Gateway, text_tokenizer: TextTokenizer, chat: bool
) -> None:
    """Text, token ids, prompt ids, finish, stop reason and usage, with a stop string and emoji."""
    ids = ids_of(text_tokenizer, "Flags 🇩🇪🇯🇵 and 東京 until END of all")
    gateway.play(saying(*ids, EOS, cached=1))
    ask = gateway.chat if chat else gateway.complete
    fields: dict[str, Any] = {"stop": ["zzz", "END"], "return_token_ids": True, "max_tokens": 99}
    whole = (await ask(**fields)).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await ask(**fields, stream=True, stream_options=options)
    *chunks, last, done = frames(response.text)
    assert done == "[DONE]" and last["choices"] == []
    assert last["usage"] == whole["usage"]
    choices = [chunk["choices"][0] for chunk in chunks]
    expected = whole["choices"][0]
    texts = [c["delta"].get("content", "") if chat else c["text"] for c in choices]
    text = "".join(texts)
    assert text == (expected["message"]["content"] if chat else expected["text"])
    assert text == "Flags 🇩🇪🇯🇵 and 東京 until "
    assert not any("\ufffd" in part for part in texts)
    assert sum((c.get("token_ids", []) for c in choices), []) == expected["token_ids"]
    first = chunks[0] if chat else choices[0]
    assert first["prompt_token_ids"] == (whole if chat else expected)["prompt_token_ids"]
    assert choices[-1]["finish_reason"] == expected["finish_reason"] == "stop"
    assert choices[-1]["stop_reason"] == expected["stop_reason"] == "END"
    running = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert running == sorted(running) and running[-1] == len(expected["token_ids"])


async def test_a_stop_string_closes_the_generator(
    gateway: Gateway, text_tokenizer: TextTokenizer
) -> None:
    ids = ids_of(text_tokenizer, " one two STOP")
    gateway.play(lambda request: [Step((i,)) for i in ids] + [Step((28,), 0.001)] * 10**5)
    whole = await gateway.complete(stop="STOP", max_tokens=500)
    assert whole.json()["choices"][0]["text"] == " one two "
    assert whole.json()["usage"]["completion_tokens"] <= len(ids)
    assert await eventually(lambda: gateway.generator.num_running == 0)
    streamed = frames((await gateway.complete(stop="STOP", max_tokens=500, stream=True)).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed[:-1]) == " one two "
    assert await eventually(lambda: gateway.generator.num_running == 0)
    assert list(gateway.generator.ended.values()) == ["aborted", "aborted"]


async def test_stop_token_id_is_the_reason(gateway: Gateway) -> None:
    gateway.play(saying(19556, 17))
    choice = (await gateway.complete(stop_token_ids=[17])).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("Hello", 17)
    gateway.play(saying(19556, EOS))
    response = await gateway.complete(
        ignore_eos=True,
        stop_token_ids=[EOS],
        skip_special_tokens=False,
        include_stop_str_in_output=True,
    )
    choice = response.json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("Hello<|im_end|>", EOS)
    assert gateway.generator.requests[-1].stop.stop_token_ids == {EOS}


async def test_choices_of_a_stream_are_merged(gateway: Gateway) -> None:
    gateway.play(saying(19556, 17, EOS, delay=0.002))
    response = await gateway.chat(stream=True, n=3, temperature=1)
    *chunks, done = frames(response.text)
    assert done == "[DONE]"
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Hello!"
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "stop"


async def test_held_back_text_sends_nothing_unless_ids_are_asked(
    gateway: Gateway, text_tokenizer: TextTokenizer
) -> None:
    ids = ids_of(text_tokenizer, "🤷")
    assert len(ids) > 1
    gateway.play(saying(*ids, delay=0.005, finish=FinishReason.LENGTH))
    plain = frames((await gateway.complete(stream=True)).text)
    assert [c["choices"][0]["text"] for c in plain[:-1]] == ["🤷", ""]
    asked = frames((await gateway.complete(stream=True, return_token_ids=True)).text)
    with_ids = [c["choices"][0]["token_ids"] for c in asked[:-1]]
    assert [i for chunk in with_ids for i in chunk] == list(ids)
    assert len([chunk for chunk in with_ids if chunk]) == len(ids)


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (AttemptFailed(FailureKind.WORKER_LOST, "/srv/secret"), "inside the cluster", 500),
        (DeadlineExceeded("credit wait"), "credit wait", 504),
        (KeyError("/srv/secret"), "inside the cluster", 500),
        (None, "inside the cluster", 500),  # the generator just ends
    ],
)
async def test_an_error_in_the_stream(
    gateway: Gateway, error: Exception | None, message: str, code: int
) -> None:
    steps = [Step((19556,)), *([Step(delay=0.02, error=error)] if error else [])]
    gateway.play(lambda request: steps)
    response = await gateway.chat(stream=True, stream_options={"include_usage": True})
    assert response.status_code == 200
    *chunks, last, done = frames(response.text)
    assert done == "[DONE]"
    assert set(last) == {"error"} and message in last["error"]["message"]
    assert last["error"]["code"] == code
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    response = await gateway.chat()
    assert response.status_code == code and "secret" not in response.text


async def test_an_abort_from_inside_is_no_answer(gateway: Gateway) -> None:
    gateway.play(saying(19556, 17, finish=FinishReason.ABORT))
    assert (await gateway.complete()).status_code == 500


async def test_keep_alive_before_and_between_tokens(bundled_model: Path) -> None:
    async with serving(bundled_model, keep_alive_seconds=0.05) as gateway:
        gateway.play(saying(19556, EOS, delay=0.18))
        parsed = frames((await gateway.complete(stream=True)).text)
        assert parsed[0] == parsed[1] == ": keep-alive"
        texts = [f for f in parsed if isinstance(f, dict)]
        assert [c["choices"][0]["text"] for c in texts] == ["Hello", ""]
        assert ": keep-alive" in parsed[parsed.index(texts[0]) :]
        # Once committed to 200 a failure can only be told in the stream.
        gateway.play(lambda request: [Step(delay=0.12, error=DeadlineExceeded("no credit"))])
        response = await gateway.complete(stream=True)
        assert response.status_code == 200
        assert frames(response.text)[-2]["error"]["message"] == "no credit"


async def test_request_timeout(bundled_model: Path) -> None:
    config = gateway_config(admission={"request_timeout_s": 0.3})
    async with serving(bundled_model, endless(28), config) as gateway:
        response = await gateway.complete(max_tokens=2000)
        assert response.status_code == 504
        assert response.headers["x-should-retry"] == "false"
        assert "request_timeout_s" in response.json()["error"]["message"]
        response = await gateway.complete(max_tokens=2000, stream=True)
        assert response.status_code == 200
        assert frames(response.text)[-2]["error"]["code"] == 504
        assert await eventually(lambda: gateway.generator.num_running == 0)
