"""Asks a running gateway for JSON, on behalf of the commands."""

from typing import Any

import httpx

from segue.cluster.errors import InvalidRequest, Unavailable

TIMEOUT_S = 10.0


def fetch(url: str, path: str, api_key: str | None, **query: str | int) -> dict[str, Any]:
    """Raises Unavailable if nobody answers there, InvalidRequest with the gateway's own words."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    target = url.rstrip("/") + path
    try:
        answer = httpx.get(
            target, params=query, headers=headers, timeout=TIMEOUT_S, trust_env=False
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
