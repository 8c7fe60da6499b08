"""`segue drain`: empties a worker and lets it go; `segue migrate`: moves one request."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from segue.cluster.config.transfer import MAX_MOVE_S
from segue.cluster.errors import DeadlineExceeded, Unavailable
from segue.deploy.api_key import ApiKeyOption, chosen_api_key
from segue.deploy.gateway_address import PortOption, UrlOption, chosen_url
from segue.deploy.gateway_query import fetch, order
from segue.deploy.status_command import size
from segue.deploy.user_errors import told_to_the_user

LOOK_SECONDS = 0.5
MIGRATE_SECONDS = MAX_MOVE_S + 60.0  # the gateway gives up before, whatever is configured


def drain(
    worker: Annotated[str, typer.Argument(help="its id, as `segue status` shows it")],
    wait: Annotated[
        bool, typer.Option(help="return only when the worker has left, telling what it waits for")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0, help="seconds to wait")] = 300.0,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: ApiKeyOption = None,
) -> None:
    """Empty a worker: it takes nothing new, what it writes moves to others, then it leaves.

    The pool's size does not change: another worker is started in its place.
    """
    key = chosen_api_key(api_key)
    with told_to_the_user():
        gateway = chosen_url(url, port)
        began = time.monotonic()
        incarnation = order(gateway, "/admin/drain", key, {"worker": worker})["incarnation"]
        print(f"{worker} is draining")
        if not wait:
            return
        for told in _changes(gateway, key, worker, str(incarnation), began + timeout):
            print(f"{worker} {told}")
        print(f"{worker} has left after {time.monotonic() - began:.1f} s")


def _changes(
    url: str, key: str | None, worker: str, incarnation: str, deadline: float
) -> Iterator[str]:
    """What `segue status` says of that life of the worker, until it is over."""
    told = ""
    while True:
        workers = fetch(url, "/debug/status", key).get("workers", [])
        found = [w for w in workers if w["id"] == worker and w["incarnation"] == incarnation]
        if not found or found[0]["state"] == "dead":
            return
        now = f"{found[0]['state']}: {found[0]['reason']}"
        if now != told:
            yield now
        told = now
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"{worker} has not left yet ({told})")
        time.sleep(LOOK_SECONDS)


def migrate(
    request: Annotated[str, typer.Argument(help="the id of a running answer, or of its request")],
    worker: Annotated[str, typer.Argument(help="where it shall go on, as `segue status` shows it")],
    url: UrlOption = None,
    port: PortOption = None,
    api_key: ApiKeyOption = None,
) -> None:
    """Move a running request to another worker; its stream goes on without a break."""
    with told_to_the_user():
        body = {"request": request, "worker": worker}
        gateway = chosen_url(url, port)
        done = order(gateway, "/admin/migrate", chosen_api_key(api_key), body, MIGRATE_SECONDS)
        for line in account(done):
            print(line)


def account(done: dict[str, Any]) -> list[str]:
    """What was moved, in words. Raises Unavailable if it is not a gateway's account."""
    try:
        lines = [f"{done['request']} moved from {done['from']} to {done['to']}"]
        if done["blocks"] is not None:
            lines.append(
                f"{done['tokens']} tokens in its context; {done['blocks']} KV blocks "
                f"({size(done['bytes'])}) moved, {done['blocks_while_stopped']} of them in the "
                f"{done['stopped_ms']:.1f} ms for which it stood still"
            )
        pause = done["pause_ms"]
        lines.append(
            "it ended before its new worker said anything"
            if pause is None
            else f"{pause:.1f} ms between the last token of one and the first of the other"
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the gateway's answer can not be read: {error!r}") from error
    return lines
