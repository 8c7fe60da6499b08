"""Every defect of a request is a 400 that names its field, and nothing reaches a worker."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.router.conftest import EOS, Gateway, Step, saying

from segue.cluster.request import FinishReason
from segue.cluster.retention import Retention, RetentionRange

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = list(range(3, 2051))
RETENTION = "kv_cache_retention_config"
RANGES = f"{RETENTION}.token_range_retention_configs"


def ranges(*items: dict[str, Any]) -> dict[str, Any]:
    return {RETENTION: {"token_range_retention_configs": list(items)}}


# (path suffix, fields added to a good body, the field that must be named)
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"temperature": 2.01}, "temperature"),
    ("completions", {"temperature": "0.5"}, "temperature"),
    ("completions", {"temperature": True}, "temperature"),
    ("completions", {"temperature": -1}, "temperature"),
    ("completions", {"top_p": 0}, "top_p"),
    ("completions", {"top_p": 1.1}, "top_p"),
    ("completions", {"top_k": -2}, "top_k"),
    ("completions", {"top_k": 1.5}, "top_k"),
    ("completions", {"min_p": 1.5}, "min_p"),
    ("completions", {"max_tokens": 0}, "max_tokens"),
    ("completions", {"max_tokens": True}, "max_tokens"),
    ("completions", {"max_tokens": "5"}, "max_tokens"),
    ("completions", {"max_tokens": 2048}, "max_tokens"),
    ("completions", {"max_tokens": 10**30}, "max_tokens"),
    ("completions", {"min_tokens": -1}, "min_tokens"),
    ("completions", {"min_tokens": 17}, "min_tokens"),
    ("completions", {"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ("completions", {"n": 0}, "n"),
    ("completions", {"n": 129}, "n"),
    ("completions", {"n": 2, "temperature": 0}, "n"),
    ("completions", {"n": 5, "prompt": ["a"] * 26}, "prompt"),
    ("completions", {"best_of": 2}, "best_of"),
    ("completions", {"seed": 2**63}, "seed"),
    ("completions", {"seed": 1.0}, "seed"),
    ("completions", {"stop": ""}, "stop"),
    ("completions", {"stop": ["a", 1]}, "stop"),
    ("completions", {"stop": {"a": 1}}, "stop"),
    ("completions", {"stop": ["x"] * 33}, "stop"),
    ("completions", {"stop": "x" * 1025}, "stop"),
    ("completions", {"stop_token_ids": [49152]}, "stop_token_ids"),
    ("completions", {"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ("completions", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("completions", {"stream": "yes"}, "stream"),
    ("completions", {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options."),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": None}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": [[]]}, "prompt"),
    ("completions", {"prompt": ["a", ""]}, "prompt"),
    ("completions", {"prompt": ["a", 1]}, "prompt"),
    ("completions", {"prompt": [1, "a"]}, "prompt"),
    ("completions", {"prompt": [1, True]}, "prompt"),
    ("completions", {"prompt": [[1], 2]}, "prompt"),
    ("completions", {"prompt": [-1]}, "prompt"),
    ("completions", {"prompt": [49152]}, "prompt"),
    ("completions", {"prompt": [2**70]}, "prompt"),
    ("completions", {"prompt": {"a": 1}}, "prompt"),
    ("completions", {"prompt": LONG}, "prompt"),
    ("completions", {"prompt": "hello " * 2100}, "prompt"),
    ("completions", {"prompt": "x" * 2_000_000}, "prompt"),
    ("completions", {"cache_salt": "a/b"}, "cache_salt"),
    ("completions", {"cache_salt": "a" * 129}, "cache_salt"),
    ("completions", {"priority": 2**31}, "priority"),
    ("completions", {RETENTION: 7}, RETENTION),
    ("completions", {RETENTION: {"decode_priority": 5}}, f"{RETENTION}.decode_priority"),
    (
        *("completions", {RETENTION: {"decode_retention_priority": 101}}),
        f"{RETENTION}.decode_retention_priority",
    ),
    ("completions", {RETENTION: {"decode_duration_ms": 0}}, f"{RETENTION}.decode_duration_ms"),
    ("completions", ranges({"token_start": 0}), f"{RANGES}.0.priority"),
    ("completions", ranges({"token_start": -1, "priority": 5}), f"{RANGES}.0.token_start"),
    ("completions", ranges({"token_start": 0, "priority": -1}), f"{RANGES}.0.priority"),
    ("completions", ranges({"token_start": 0, "priority": 5.5}), f"{RANGES}.0.priority"),
    (
        *("completions", ranges({"token_start": 0, "priority": 5, "duration_ms": "1"})),
        f"{RANGES}.0.duration_ms",
    ),
    (
        *("completions", ranges(*({"token_start": i, "priority": 5} for i in range(33)))),
        RANGES,
    ),
    ("completions", ranges({"token_start": 9, "token_end": 9, "priority": 5}), RETENTION),
    (
        *("completions", ranges(*({"token_start": i, "priority": 5} for i in (0, 4)))),
        RETENTION,
    ),
    ("chat/completions", ranges({"token_start": 9, "token_end": 4, "priority": 5}), RETENTION),
    ("completions", {"request_id": "a b"}, "request_id"),
    ("completions", {"model": 7}, "model"),
    ("completions", {"logprobs": 0}, "logprobs"),
    ("completions", {"logprobs": 3}, "logprobs"),
    ("completions", {"echo": True}, "echo"),
    ("completions", {"suffix": "x"}, "suffix"),
    ("completions", {"prompt_logprobs": 0}, "prompt_logprobs"),
    ("completions", {"logit_bias": {"5": 1}}, "logit_bias"),
    ("completions", {"presence_penalty": 0.5}, "presence_penalty"),
    ("completions", {"frequency_penalty": -0.5}, "frequency_penalty"),
    ("completions", {"repetition_penalty": 1.1}, "repetition_penalty"),
    ("completions", {"repetition_penalty": True}, "repetition_penalty"),
    ("completions", {"guided_json": {}}, "guided_json"),
    ("completions", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ("completions", {"response_format": {"type": "json_object"}}, "response_format"),
    ("completions", {"use_beam_search": True}, "use_beam_search"),
    ("completions", {"bad_words": ["x"]}, "bad_words"),
    ("completions", {"allowed_token_ids": [1]}, "allowed_token_ids"),
    ("completions", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ("completions", {"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    ("chat/completions", {"messages": []}, "messages"),
    ("chat/completions", {"messages": None}, "messages"),
    ("chat/completions", {"messages": "hi"}, "messages"),
    ("chat/completions", {"messages": ["hi"]}, "messages.0"),
    ("chat/completions", {"messages": [{"content": "x"}]}, "messages.0.role"),
    ("chat/completions", {"messages": [{"role": 1, "content": "x"}]}, "messages.0.role"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages.0.content"),
    ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ("chat/completions", {"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0",
    ),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages.0.content.0",
    ),
    ("chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("chat/completions", {"max_completion_tokens": 2048}, "max_completion_tokens"),
    ("chat/completions", {"max_completion_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ("chat/completions", {"logprobs": True}, "logprobs"),
    ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"tools": [{"type": "function"}]}, "tools"),
    ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {"functions": [{}]}, "functions"),
    ("chat/completions", {"chat_template": "x"}, "chat_template"),
    ("chat/completions", {"documents": [{}]}, "documents"),
    ("chat/completions", {"modalities": ["audio"]}, "modalities"),
    ("chat/completions", {"audio": {"voice": "x"}}, "audio"),
    ("chat/completions", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (
        "chat/completions",
        {"add_generation_prompt": True, "continue_final_message": True},
        "continue_final_message",
    ),
]
# Bodies that are wrong as a whole.
RAW: list[tuple[bytes, str, str]] = [
    (b"{", "application/json", "valid JSON"),
    (b"", "application/json", "valid JSON"),
    (b"[1]", "application/json", "JSON object"),
    (b'"x"', "application/json", "JSON object"),
    (b"\xff\xfe", "application/json", "valid JSON"),
    (b"[" * 100_000, "application/json", "valid JSON"),
    (b'{"prompt": "\\ud800"}', "application/json", "valid JSON"),
    (b'{"prompt": "x", "temperature": NaN}', "application/json", "temperature must be a finite"),
    (b'{"prompt": "x", "top_p": Infinity}', "application/json", "top_p must be a finite"),
    (b'{"prompt": "x", "min_p": -1e999}', "application/json", "min_p must be a finite"),
    (b'{"prompt": "x", "metadata": {"a": [NaN]}}', "application/json", "metadata.a.0 must be"),
    (b'{"prompt": "x"}', "text/plain", "Content-Type"),
    (b"prompt=x", "application/x-www-form-urlencoded", "Content-Type"),
]


def good_body(path: str) -> dict[str, Any]:
    if path == "completions":
        return {"prompt": "Hi"}
    return {"messages": [{"role": "user", "content": "Hi"}]}


def checked(response: Any, status: int) -> dict[str, Any]:
    """The body of an error must have OpenAI's shape, whatever went wrong."""
    assert response.status_code == status, response.text[:500]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and len(response.content) < 2000
    assert response.headers["x-request-id"]
    return error


async def test_wrong_fields(gateway: Gateway) -> None:
    for path, fields, param in CASES:
        response = await gateway.client.post(f"/v1/{path}", json={**good_body(path), **fields})
        error = checked(response, 400)
        assert error["param"] is not None and error["param"].startswith(param), (fields, error)
        assert error["type"] == "BadRequestError" and error["code"] == 400
    assert gateway.generator.requests == []


async def test_wrong_bodies(gateway: Gateway) -> None:
    for content, media_type, message in RAW:
        response = await gateway.client.post(
            "/v1/completions", content=content, headers={"Content-Type": media_type}
        )
        assert message in checked(response, 400)["message"], content[:50]
    assert gateway.generator.requests == []


NEUTRAL: dict[str, Any] = {
    "logprobs": None,
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "response_format": {"type": "text"},
    "best_of": 1,
    "use_beam_search": False,
    "max_tokens": None,
    "temperature": None,
    "stop": None,
    "top_k": -1,
    "seed": -5,
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "session_id": "s",
    "cache_salt": "tenant-1",
    "priority": 0,
    "some_new_field": {"x": 1},
}


async def test_neutral_values_and_unknown_fields_are_let_through(gateway: Gateway) -> None:
    gateway.play(saying(19556, EOS))
    response = await gateway.complete(**NEUTRAL, echo=False, suffix=None)
    assert response.status_code == 200, response.text
    response = await gateway.chat(
        **{**NEUTRAL, "logprobs": 0, "top_logprobs": 0, "tools": [], "tool_choice": "auto"}
    )
    assert response.status_code == 200, response.text
    for request in gateway.generator.requests:
        assert request.cache_salt == "tenant-1" and request.priority == 0
        assert request.sampling.top_k == 0 and request.sampling.seed == 2**64 - 5


async def test_what_shall_be_kept_reaches_the_workers(gateway: Gateway) -> None:
    """As TensorRT-LLM's clients write it, with times in milliseconds."""
    gateway.play(saying(19556, EOS))
    fields: dict[str, Any] = {
        RETENTION: {
            "token_range_retention_configs": [
                {"token_start": 0, "token_end": 64, "priority": 80, "duration_ms": 1500},
                {"token_start": 64, "token_end": None, "priority": 0},
            ],
            "decode_retention_priority": 5,
            "decode_duration_ms": 30_000,
        }
    }
    assert (await gateway.complete(**fields)).status_code == 200
    assert (await gateway.chat(**fields)).status_code == 200
    assert (await gateway.chat(**{RETENTION: None})).status_code == 200
    assert (await gateway.chat(**{RETENTION: {}})).status_code == 200
    kept = Retention((RetentionRange(0, 64, 80, 1.5), RetentionRange(64, None, 0)), 5, 30.0)
    assert [request.retention for request in gateway.generator.requests] == [
        *(kept, kept),
        *(Retention(), Retention()),
    ]


async def test_unknown_routes_and_methods(gateway: Gateway) -> None:
    assert "/v1/nothing" in checked(await gateway.client.get("/v1/nothing"), 404)["message"]
    response = await gateway.client.get("/v1/completions")
    checked(response, 405)
    assert response.headers["allow"] == "POST"
    checked(await gateway.client.delete("/v1/models"), 405)
    checked(await gateway.client.get("/v1/models/"), 404)


async def test_request_id_header_is_checked(gateway: Gateway) -> None:
    for bad in ("a" * 129, "with space", "caf\u00e9"):
        response = await gateway.client.get(
            "/live", headers=[(b"X-Request-Id", bad.encode("latin-1"))]
        )
        assert checked(response, 400)["param"] == "X-Request-Id"
        assert response.headers["x-request-id"] != bad


async def test_a_good_stream_is_unharmed_beside_bad_requests(gateway: Gateway) -> None:
    words = [19556, 28, 1181, 17] * 25
    gateway.play(
        lambda request: [
            *(Step((token,), 0.01) for token in words),
            Step((EOS,), 0.0, FinishReason.STOP),
        ]
    )
    expected = (await gateway.client.post("/detokenize", json={"tokens": words})).json()["prompt"]
    times: list[float] = []
    parts: list[str] = []

    async def good() -> None:
        body = {"prompt": "good", "stream": True, "max_tokens": 200}
        loop = asyncio.get_running_loop()
        async with gateway.client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                times.append(loop.time())
                parts.append(line)

    async def bad() -> None:
        for index in range(30):
            path, fields, _ = CASES[index * 3]
            await gateway.client.post(f"/v1/{path}", json={**good_body(path), **fields})
            content, media_type, _ = RAW[index % len(RAW)]
            await gateway.client.post(
                "/v1/completions", content=content, headers={"Content-Type": media_type}
            )

    await asyncio.wait_for(asyncio.gather(good(), bad()), 15)
    frames = [line[6:] for line in parts if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    text = "".join(orjson.loads(frame)["choices"][0]["text"] for frame in frames[:-1])
    assert text == expected
    assert max(b - a for a, b in zip(times, times[1:], strict=False)) < 0.5
    assert len(gateway.generator.requests) == 1
    assert list(gateway.generator.ended.values()) == ["exhausted"]
