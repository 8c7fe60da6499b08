"""Offers of other protocols are ignored, and who has only stopped sending is answered."""

import asyncio
import json

import httpx
import orjson
import pytest
from tests.router.conftest import ENDED, Gateway, Step, eventually

from segue.router.half_close import FIRST_SECONDS
from segue.router.http_protocol import MAX_HEADERS

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = orjson.dumps({"prompt": "Hi"})
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
WEBSOCKET = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
)


def post(extra: bytes, body: bytes = BODY) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def exchange(gateway: Gateway, *segments: bytes, half_close: bool = False) -> bytes:
    """All that comes back for a second after the last segment, or until the connection ends."""
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for segment in segments:
        writer.write(segment)
        await writer.drain()
        await asyncio.sleep(0.1)  # so that the next one is a read of its own
    if half_close:
        writer.write_eof()
    received = b""
    try:
        async with asyncio.timeout(10.0 if half_close else 1.0):
            while piece := await reader.read(65536):
                received += piece
    except TimeoutError:
        assert not half_close, f"the connection did not end: {received!r}"
    writer.close()
    return received


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, H2C.upper()], ids=["h2c", "websocket", "loud"])
@pytest.mark.parametrize("cut", ["one segment", "body apart", "head cut", "many"])
async def test_an_offer_is_ignored_and_the_body_read(
    gateway: Gateway, offer: bytes, cut: str
) -> None:
    whole = post(offer)
    end = whole.index(b"\r\n\r\n") + 4
    segments = {
        "one segment": [whole],
        "body apart": [whole[:end], whole[end:]],
        "head cut": [whole[:40], whole[40:]],
        "many": [whole[:90], whole[90:end], whole[end : end + 3], whole[end + 3 :]],
    }[cut]
    answer = await exchange(gateway, *segments)
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 200 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]
    assert len(gateway.generator.requests) == 1


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET])
async def test_a_body_is_never_taken_for_a_request(gateway: Gateway, offer: bytes) -> None:
    head = post(offer, SMUGGLED)
    end = head.index(b"\r\n\r\n") + 4
    answer = await exchange(gateway, head[:end], head[end:])
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400 ")
    chunked = head[:end].replace(
        b"Content-Length: %d" % len(SMUGGLED), b"Transfer-Encoding: chunked"
    )
    answer = await exchange(gateway, chunked, b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED))
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400 ")


async def test_the_connection_goes_on_behind_an_offer(gateway: Gateway) -> None:
    """Also pipelined, in one segment, with offers before and behind."""
    live = b"GET /live HTTP/1.1\r\nHost: x\r\n"
    answer = await exchange(gateway, post(H2C) + live + WEBSOCKET + b"\r\n" + live + b"\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 3


async def test_a_tunnel_is_refused_in_form(gateway: Gateway) -> None:
    answer = await exchange(
        gateway, b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", SMUGGLED
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ") and b"application/json" in head
    assert json.loads(body)["error"]["code"] == 405


async def test_what_is_no_http_is_told_as_json(gateway: Gateway) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /live HTTP/9.9\r\n\r\n",
        b"hello\r\n\r\n",
    ):
        answer = await exchange(gateway, garbage)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
        assert json.loads(body)["error"]["type"] == "BadRequestError"


async def test_headers_are_counted(gateway: Gateway) -> None:
    for count, status in ((MAX_HEADERS, b"200"), (MAX_HEADERS + 1, b"431"), (20_000, b"431")):
        headers = b"".join(b"a%d:\r\n" % number for number in range(count))
        answer = await exchange(gateway, b"GET /live HTTP/1.1\r\n" + headers + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status)
        if status != b"200":
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 431


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_stops_sending_gets_its_answer(gateway: Gateway, stream: bool) -> None:
    live = await exchange(gateway, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True)
    assert live.startswith(b"HTTP/1.1 200 ") and b'"live"' in live
    body = orjson.dumps({"prompt": "Hi", "stream": stream})
    answer = await exchange(gateway, post(b"", body), half_close=True)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (b"data: [DONE]" if stream else b'"choices"') in answer
    assert list(gateway.generator.ended.values()) == ["exhausted"]


async def test_a_slow_answer_to_one_that_stopped_sending(gateway: Gateway) -> None:
    """It is asked whether it still reads, in a way that every client skips."""
    gateway.play(lambda request: [Step((28,), FIRST_SECONDS + 0.5), *ENDED(request)])
    answer = await exchange(gateway, post(b""), half_close=True)
    interim, _, rest = answer.partition(b"HTTP/1.1 200 ")
    assert set(interim.split(b"\r\n\r\n")) == {b"HTTP/1.1 100 Continue", b""}
    assert b'"choices"' in rest


async def test_pipelined_requests_before_the_end_of_sending_are_all_answered(
    gateway: Gateway,
) -> None:
    answer = await exchange(gateway, post(b"") * 3, half_close=True)
    assert answer.count(b"HTTP/1.1 200 ") == 3


async def test_an_unfinished_request_that_stops_is_not_answered(gateway: Gateway) -> None:
    assert await exchange(gateway, post(b"")[:-3], half_close=True) == b""
    assert await exchange(gateway, b"GET /live HT", half_close=True) == b""
    assert gateway.generator.requests == []
    assert await eventually(lambda: gateway.generator.num_running == 0)
