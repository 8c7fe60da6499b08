"""Reading a JSON body: what is refused before it is parsed, and how."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.router.conftest import Gateway

from segue.cluster.errors import SegueError
from segue.router.request_body import read_json


def request(*messages: Message, **headers: str) -> Request:
    """`messages`, then silence."""
    left = list(messages)

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    given = {"content-type": "application/json"} | headers
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return Request({"type": "http", "headers": raw}, receive)


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_is_one_body() -> None:
    parts = part(b'{"a":', more=True), part(b" 1}")
    assert await read_json(request(*parts, content_encoding="identity"), 100) == {"a": 1}


async def test_a_body_that_stops_coming_is_the_clients_fault() -> None:
    with pytest.raises(SegueError, match="in time") as caught:
        await read_json(request(part(b"{", more=True)), 100, seconds=0.05)
    assert caught.value.http_status == 408


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "identity, gzip"])
async def test_an_encoded_body_is_named_as_such(encoding: str) -> None:
    with pytest.raises(SegueError, match="Content-Encoding") as caught:
        await read_json(request(part(b"\x1f\x8b"), content_encoding=encoding), 100)
    assert caught.value.http_status == 400


@pytest.mark.asyncio(loop_scope="module")
async def test_a_path_with_two_slashes_is_told_as_it_was_asked(gateway: Gateway) -> None:
    answer = await gateway.client.get(gateway.url + "//v1/models")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no //v1/models"
