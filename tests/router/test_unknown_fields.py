"""Unknown fields: misspellings are refused by name, the rest is listed in a header."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.router.conftest import Gateway

from segue.cluster.errors import InvalidRequest
from segue.router.api_types import ChatBody, CompletionBody
from segue.router.unknown_fields import IGNORED_HEADER, ignored_fields, refuse_misspelt
from segue.router.unsupported import UNSUPPORTED_CHAT, UNSUPPORTED_COMPLETION

KNOWN = [*CompletionBody.model_fields, *UNSUPPORTED_COMPLETION]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("temprature", "temperature"),
        ("top-p", "top_p"),
        ("topK", "top_k"),
        ("streem", "stream"),
        ("stop_token_id", "stop_token_ids"),
        ("kv_cache_retention_configs", "kv_cache_retention_config"),
        ("logit_biases", "logit_bias"),
    ],
)
def test_a_misspelling_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"no field {name}; did you mean {meant}") as caught:
        refuse_misspelt([name], KNOWN)
    assert caught.value.param == name


@pytest.mark.parametrize(
    "name", ["metadata", "store", "service_tier", "extra_body", "x", "top_a", "dry_multiplier"]
)
def test_what_resembles_nothing_is_let_through(name: str) -> None:
    refuse_misspelt([name], KNOWN)


def test_fields_of_the_other_route_are_no_misspellings_of_ours() -> None:
    """Clients share the code that builds bodies of both."""
    for name in ChatBody.model_fields.keys() - CompletionBody.model_fields.keys():
        refuse_misspelt([name], KNOWN)
    chat = [*ChatBody.model_fields, *UNSUPPORTED_CHAT]
    for name in CompletionBody.model_fields.keys() - ChatBody.model_fields.keys():
        refuse_misspelt([name], chat)


def test_a_hundred_thousand_fields_cost_as_much_as_sixteen() -> None:
    began = time.process_time()
    for _ in range(10):
        refuse_misspelt((f"{i:x<40}" for i in range(100_000)), KNOWN)
    assert time.process_time() - began < 5  # it was minutes


@given(st.lists(st.text(max_size=200), max_size=40))
def test_the_header_is_a_header_whatever_a_client_sends(names: list[str]) -> None:
    value = ignored_fields(names)
    assert len(value) < 1000 and value.isascii() and (value.isprintable() or not value)


@pytest.mark.asyncio(loop_scope="module")
async def test_over_http(gateway: Gateway) -> None:
    answer = await gateway.complete(metadata={"a": 1}, store=True)
    assert answer.status_code == 200
    assert answer.headers[IGNORED_HEADER] == "metadata, store"
    assert IGNORED_HEADER not in (await gateway.complete()).headers
    answer = await gateway.complete(temprature=0)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temprature")
    answer = await gateway.client.post(
        "/tokenize", json={"prompt": "a", "add_special_token": False}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "add_special_token")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_first_unsupported_field_of_the_body_is_named(gateway: Gateway) -> None:
    """Not one or the other by the seed of a process's hashes."""
    names = ["suffix", "echo", "logit_bias", "presence_penalty", "guided_json", "documents"]
    for first in range(len(names)):
        order = names[first:] + names[:first]
        answer = await gateway.complete(**dict.fromkeys(order, 1))
        error = answer.json()["error"]
        assert error["param"] == order[0] and error["message"] == f"{order[0]} is not implemented"
