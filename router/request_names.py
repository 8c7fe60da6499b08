"""Under which names the answers that clients know are written in the workers, while they are."""

from collections import Counter
from collections.abc import Collection, Iterable

from segue.cluster.errors import InvalidRequest

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")  # what the ids of answers have before the request's


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
