"""What a text process makes of a body, and that it crosses to the gateway unchanged."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.router.conftest import CARD

from segue.cluster.errors import InvalidRequest, ModelNotFound
from segue.router.chat_template import ChatTemplate
from segue.router.control_tokens import ControlTokens
from segue.router.preparation import Prepared, pack, prepare_chat, prepare_completion, unpack
from segue.router.text_model import TextModel
from segue.router.tokenizer import TextTokenizer, load_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
FULL: dict[str, Any] = {
    "prompt": ["one", "two"],
    "n": 3,
    "temperature": 0.5,
    "seed": -1,
    "stop": ["a", "é"],
    "stop_token_ids": [7],
    "cache_salt": "red",
    "stream": True,
    "stream_options": {"include_usage": True},
    "request_id": "mine",
    "metadata": {},
    "kv_cache_retention_config": {
        "token_range_retention_configs": [{"token_start": 0, "priority": 9, "duration_ms": 1500}]
    },
}


@pytest.fixture(scope="module")
def model(bundled_model: Path) -> TextModel:
    tokenizer = load_tokenizer(bundled_model)
    return TextModel(CARD, tokenizer, ControlTokens(tokenizer.library), ChatTemplate(TEMPLATE, {}))


def test_a_plan_crosses_unchanged_with_each_prompt_once(model: TextModel) -> None:
    prepared = prepare_completion(model, orjson.dumps(FULL))
    assert prepared.plan is not None and len(prepared.plan.requests) == 6
    assert (prepared.request_id, prepared.ignored) == ("mine", "metadata")
    assert unpack(pack(prepared)) == prepared
    long = {"prompt": [[40_000] * 2000], "n": 64, "temperature": 1}
    assert len(pack(prepare_completion(model, orjson.dumps(long)))) < 100_000


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"temperature": 3, "metadata": {}}, InvalidRequest, "temperature"),
        ({"model": "another"}, ModelNotFound, "model"),
        ({"messages": [{"role": "user", "content": [{}]}]}, InvalidRequest, "messages.0.content.0"),
    ],
)
def test_a_refusal_crosses_unchanged(
    model: TextModel, fields: dict[str, Any], kind: type[Exception], param: str
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    prepared = unpack(pack(prepare_chat(model, orjson.dumps(body))))
    assert prepared.plan is None and prepared.refusal is not None
    error = prepared.refusal.error()
    assert type(error) is kind and error.param == param


def test_names_are_told_of_refused_requests_too(model: TextModel) -> None:
    body = {"prompt": "x", "max_tokens": 10**6, "request_id": "mine", "metadata": 1}
    refused = prepare_completion(model, orjson.dumps(body))
    assert refused == Prepared(None, refused.refusal, "mine", "metadata")
    assert refused.refusal is not None and refused.refusal.param == "max_tokens"


@pytest.mark.parametrize("in_one", [True, False])
def test_parts_are_counted_before_they_are_read(model: TextModel, in_one: bool) -> None:
    part = {"type": "text", "text": "x"}
    contents = [[part] * 5000] if in_one else [[part] * 50] * 100
    body = {"messages": [{"role": "user", "content": content} for content in contents]}
    refusal = prepare_chat(model, orjson.dumps(body)).refusal
    assert refusal is not None and "more than 4096 parts" in refusal.message


def test_text_is_bounded_before_it_is_rendered(model: TextModel) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 100_000}] * 2}
    refusal = prepare_chat(model, orjson.dumps(body)).refusal
    assert refusal is not None and "2048 tokens can hold" in refusal.message


def test_no_token_is_longer_than_the_longest(text_tokenizer: TextTokenizer) -> None:
    tokens = text_tokenizer.tokens
    assert tokens.longest() == max(len(tokens[i]) for i in range(CARD.vocab_size))
