"""Asks a running gateway for JSON, on behalf of the commands."""

from typing import Any

import httpx

from segue.cluster.errors import InvalidRequest, Unavailable

TIMEOUT_S = 10.0


def fetch(url: str, path: str, api_key: str | None, **query: str | int) -> dict[str, Any]:
    """Raises Unavailable if nobody answers there, InvalidRequest with the gateway's own words."""
    return _asked("GET", url, path, api_key, TIMEOUT_S, params=query)


def order(
    url: str, path: str, api_key: str | None, body: dict[str, str], timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """As `fetch`, for what changes something."""
    return _asked("POST", url, path, api_key, timeout_s, json=body)


def _asked(
    method: str, url: str, path: str, api_key: str | None, timeout_s: float, **content: Any
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    target = url.rstrip("/") + path
    try:
        answer = httpx.request(
            method, target, headers=headers, timeout=timeout_s, trust_env=False, **content
        )
        body = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"no gateway answers at {target}: {error}") from error
    if not isinstance(body, dict):
        raise Unavailable(f"{target} is not a Segue gateway's")
    if answer.status_code != 200:
        told = body.get("error")
        if not isinstance(told, dict) or "message" not in told:
            raise Unavailable(f"{target} answered with status {answer.status_code}")
        raise InvalidRequest(str(told["message"]))
    return body
