"""Speaks to one OpenAI-compatible server: which models it has, and one measured request."""

import asyncio
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

import httpx

from segue.bench.measurement import Failure, Fault, Measurement
from segue.bench.sse import EventReader
from segue.bench.stream_reading import MAX_DETAIL, StreamReading
from segue.cluster.errors import Unavailable

EndpointName = Literal["completions", "chat"]
PATHS: dict[EndpointName, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
MODELS_TIMEOUT_S = 30.0


class OpenAIEndpoint:
    """A server and the connections to it; use as an async context."""

    def __init__(
        self, base_url: str, api_key: str | None, max_connections: int, timeout_s: float
    ) -> None:
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        # The whole request has one deadline (measure); proxies of the environment are ignored.
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=None,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def first_model(self) -> str:
        """Ask the server for its models. Raises Unavailable if it does not name one."""
        try:
            reply = await self._client.get("/v1/models", timeout=MODELS_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise Unavailable(f"no answer from the server: {describe(error)}") from error
        if reply.status_code != 200:
            raise Unavailable(f"/v1/models answered {reply.status_code}: {reply.text[:MAX_DETAIL]}")
        try:
            return str(reply.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise Unavailable("/v1/models names no model; give one with --model") from error

    async def measure(
        self, endpoint: EndpointName, body: bytes, wanted_tokens: int, level_began: float
    ) -> Measurement:
        """Send one request and read its stream to the end. Whatever goes wrong is measured."""
        reading = StreamReading()
        sent = perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                failure = await self._read(PATHS[endpoint], body, sent, reading)
        except TimeoutError:
            failure = Failure(Fault.TIMEOUT, f"not finished after {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            failure = Failure(Fault.CONNECTION, describe(error))
        ended_s = perf_counter() - sent if reading.done_s is None else reading.done_s
        return Measurement(
            sent_s=sent - level_began,
            ended_s=ended_s,
            chunks_s=tuple(reading.chunks_s),
            finish_s=reading.finish_s,
            prompt_tokens=reading.prompt_tokens,
            output_tokens=reading.output_tokens,
            failure=failure or reading.verdict(wanted_tokens),
        )

    async def _read(
        self, path: str, body: bytes, sent: float, reading: StreamReading
    ) -> Failure | None:
        async with self._client.stream("POST", path, content=body) as response:
            if response.status_code != 200:
                return Failure(Fault.HTTP, await beginning(response), response.status_code)
            events = EventReader()
            try:
                async for piece in response.aiter_raw():
                    at_s = perf_counter() - sent
                    for payload in events.feed(piece):
                        reading.observe(payload, at_s)
            except httpx.TransportError as error:
                if reading.error is None:
                    return Failure(Fault.TRUNCATED, describe(error))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                return Failure(Fault.MALFORMED, describe(error))
        return None


async def beginning(response: httpx.Response) -> str:
    """The first piece of an answer is enough to say why, and cannot fill the memory."""
    try:
        async for piece in response.aiter_bytes(MAX_DETAIL):
            return piece.decode(errors="replace")
    except httpx.TransportError as error:
        return describe(error)
    return ""


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_DETAIL]
