"""Under which names the answers that clients know are written in the workers, while they are."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from segue.cluster.errors import InvalidRequest
from segue.router.exchange import Exchange
from segue.router.request_plan import RequestPlan

UNIQUE_CHARS = 8
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")  # what the ids of answers have before the request's


def named(plan: RequestPlan, exchange: Exchange) -> RequestPlan:
    """The plan with ids by which workers, their traces and all logs name its requests.

    They begin with the id that the client knows. One that it chose itself may be chosen twice, and
    two requests must not meet in the workers: then something unique follows.
    """
    name = exchange.request_id
    if exchange.id_from_client:
        name = f"{name}.{uuid.uuid4().hex[:UNIQUE_CHARS]}"
    requests = (
        replace(request, request_id=f"{name}-{index}")
        for index, request in enumerate(plan.requests)
    )
    return replace(plan, requests=tuple(requests))


class RequestNames:
    """Two exchanges may have the same name: clients choose them."""

    def __init__(self) -> None:
        self._written: dict[str, Counter[str]] = {}

    def add(self, name: str, request_ids: Iterable[str]) -> None:
        self._written.setdefault(name, Counter()).update(request_ids)

    def remove(self, name: str, request_ids: Iterable[str]) -> None:
        written = self._written.get(name)
        if written is not None:
            written.subtract(request_ids)
            self._written[name] = +written
            if not self._written[name]:
                del self._written[name]

    def find(self, name: str, running: Collection[str]) -> str:
        """The one of the `running` requests that is meant: by its own id, by that of the answer,
        or by that of the HTTP request. Raises InvalidRequest for none and for several."""
        if name in running:
            return name
        for prefix in ANSWER_PREFIXES:
            name = name.removeprefix(prefix)
        found = sorted(set(self._written.get(name, ())) & set(running))
        if len(found) == 1:
            return found[0]
        if found:
            message = f"request '{name}' is written as {', '.join(found)}: name one"
            raise InvalidRequest(message, param="request")
        raise InvalidRequest(
            f"no request '{name}' is running at this gateway, which has {len(running)}",
            param="request",
        )
