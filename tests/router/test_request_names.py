"""The names that clients know lead to the requests that are written, and only while they are."""

import re

import pytest
from tests.router.conftest import Gateway

from segue.cluster.errors import InvalidRequest
from segue.router.request_names import RequestNames


def test_by_whatever_name_it_is_known() -> None:
    names = RequestNames()
    names.add("mine", ["a-0"])
    for name in ("a-0", "mine", "cmpl-mine", "chatcmpl-mine"):
        assert names.find(name, {"a-0", "b-0"}) == "a-0"
    names.remove("mine", ["a-0"])
    with pytest.raises(InvalidRequest, match="no request 'mine' is running .* has 2"):
        names.find("mine", {"a-0", "b-0"})


def test_several_are_listed_and_ended_ones_are_not_meant() -> None:
    names = RequestNames()
    names.add("mine", ["a-0", "a-1"])
    names.add("mine", ["b-0"])  # another client chose the same
    with pytest.raises(InvalidRequest, match="written as a-0, a-1, b-0: name one"):
        names.find("mine", {"a-0", "a-1", "b-0"})
    assert names.find("mine", {"a-1"}) == "a-1"
    names.remove("mine", ["a-0", "a-1"])
    names.remove("never", ["x"])
    assert names.find("mine", {"a-0", "b-0"}) == "b-0"


@pytest.mark.asyncio(loop_scope="module")
async def test_workers_and_clients_name_a_request_alike(gateway: Gateway) -> None:
    headers = {"X-Request-Id": "order-66"}
    body = {"prompt": "Hi", "n": 2, "temperature": 1}
    for _ in range(2):  # a client may use its id twice
        answer = await gateway.client.post("/v1/completions", json=body, headers=headers)
        assert answer.headers["X-Request-Id"] == "order-66"
        assert answer.json()["id"] == "cmpl-order-66"
    ids = [request.request_id for request in gateway.generator.requests]
    assert len(set(ids)) == 4
    assert [re.fullmatch(r"order-66\.[0-9a-f]{8}-([01])", i) is not None for i in ids] == [True] * 4
    gateway.generator.requests.clear()
    answer = await gateway.complete()
    (request,) = gateway.generator.requests
    name = answer.headers["X-Request-Id"]
    assert answer.json()["id"] == f"cmpl-{name}" and request.request_id == f"{name}-0"
    answer = await gateway.complete(request_id="from-body")
    assert gateway.generator.requests[-1].request_id.startswith("from-body.")
