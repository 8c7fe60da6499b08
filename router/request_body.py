"""Reads a JSON object from a request: bounded, in time, and with every defect told as a 400."""

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request

from segue.cluster.errors import InvalidRequest

BODY_TIMEOUT_SECONDS = 60.0
_MAX_EXPLAINED_BYTES = 64 * 2**10


class BodyTooLarge(InvalidRequest):
    http_status = 413
    kind = "RequestTooLargeError"


class BodyTooSlow(InvalidRequest):
    http_status = 408
    kind = "TimeoutError"


async def read_json(
    request: Request, max_bytes: int, seconds: float = BODY_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Raises InvalidRequest. It parses on the event loop: for small bodies."""
    return parse_object(await read_body(request, max_bytes, seconds))


async def read_body(
    request: Request, max_bytes: int, seconds: float = BODY_TIMEOUT_SECONDS
) -> bytes:
    """Raises InvalidRequest; never keeps more than `max_bytes` in memory."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequest("the Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidRequest("a body with a Content-Encoding is not supported")
    return bytes(await _read(request, max_bytes, seconds))


def parse_object(data: bytes) -> dict[str, Any]:
    """Raises InvalidRequest."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _explain(data, error) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


async def _read(request: Request, max_bytes: int, seconds: float) -> bytearray:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect()
                data += message.get("body", b"")
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
                if not message.get("more_body", False):
                    return data
    except TimeoutError:
        raise BodyTooSlow("the body did not arrive in time") from None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {max_bytes} bytes")


def _explain(data: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    """Name the field that holds NaN or an infinity: JSON has none, but Python clients send them.

    To name it the body is read again, slowly; of a large one the error's place must do.
    """
    field = None
    if len(data) <= _MAX_EXPLAINED_BYTES:
        try:
            field = next(_non_finite(json.loads(data)), None)
        except (ValueError, RecursionError):
            pass
    if field is None:
        return InvalidRequest(f"the body is not valid JSON: {error}")
    return InvalidRequest(f"{field} must be a finite number", param=field)


def _non_finite(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, f"{path}.{key}"[:200] if path else str(key)[:200])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _non_finite(item, f"{path}.{index}"[:200])
