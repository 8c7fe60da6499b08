"""What a client is told when the server is stopped under its request."""

import asyncio
import logging

import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from segue.router.exchange_layer import ExchangeLayer
from segue.router.http_metrics import HttpMetrics
from segue.router.server import _CutOff
from segue.router.traffic_log import TrafficLog


class Conversation:
    """One exchange through the layer; `begins` is what the application sends before it hangs."""

    def __init__(self, *begins: Message) -> None:
        self.metrics = HttpMetrics(lambda: 0)
        self.sent: list[Message] = []
        self._begins = begins
        self._asked = False
        self.layer = ExchangeLayer(
            self._app, self.metrics, lambda path: path, 60.0, TrafficLog(False)
        )

    async def cut_off(self) -> None:
        scope = {"type": "http", "path": "/v1/completions", "method": "POST", "headers": []}
        task = asyncio.create_task(self.layer(scope, self._receive, self._send))
        await asyncio.sleep(0.05)
        task.cancel()
        async with asyncio.timeout(5):
            await task

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        for message in self._begins:
            await send(message)
        await asyncio.Event().wait()

    async def _receive(self) -> Message:
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


async def test_before_the_answer_began_it_is_a_503() -> None:
    conversation = Conversation()
    await conversation.cut_off()
    start, body = conversation.sent
    assert start["status"] == 503 and (b"retry-after", b"1") in start["headers"]
    error = orjson.loads(body["body"])["error"]
    assert error["type"] == "ServiceUnavailableError" and "stopping" in error["message"]
    assert b'error_type="unavailable",status="503"} 1.0' in conversation.metrics.render()


async def test_an_answer_under_way_is_not_made_to_look_whole() -> None:
    conversation = Conversation(
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"half", "more_body": True},
    )
    with pytest.raises(asyncio.CancelledError):
        await conversation.cut_off()
    assert conversation.sent[-1]["body"] == b"half"
    assert b'error_type="unavailable",status="503"} 1.0' in conversation.metrics.render()


def test_being_cut_off_is_no_news_but_a_fault_is() -> None:
    def record(error: BaseException) -> logging.LogRecord:
        cause = (type(error), error, None)
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "failed", (), cause)

    assert not _CutOff().filter(record(asyncio.CancelledError()))
    assert _CutOff().filter(record(RuntimeError()))
