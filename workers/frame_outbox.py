"""Collects token deltas for each gateway; what gathered since the last frame makes the next one.

Lives on the event loop. Bounded: a gateway's backlog is merged by attempt, and a gateway that
does not listen for `absence_seconds` is reported, so that its attempts can be ended.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from segue.cluster.errors import AttemptFailed, FailureKind, Overloaded, StaleKind, StaleReference
from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.identity import AttemptId

MAX_GATEWAYS = 64


class _Backlog:
    def __init__(self) -> None:
        self.deltas: dict[AttemptId, TokenDelta] = {}
        self.news = asyncio.Event()
        self.listener: object | None = None
        self.absence: asyncio.TimerHandle | None = None


class FrameOutbox:
    """`on_absent(gateway_id)` is called when nobody listened for `absence_seconds`."""

    def __init__(self, on_absent: Callable[[str], None], absence_seconds: float = 10.0) -> None:
        self._on_absent = on_absent
        self._absence_seconds = absence_seconds
        self._backlogs: dict[str, _Backlog] = {}

    def expect(self, gateway_id: str) -> None:
        """Before work is taken on for a gateway. Raises AttemptFailed if there are too many."""
        try:
            self._backlog(gateway_id)
        except Overloaded as error:
            raise AttemptFailed(FailureKind.BUSY, error.message) from error

    def put(self, gateway_id: str, delta: TokenDelta) -> None:
        """Never fails. Nobody waits for the deltas of a gateway that was declared absent.

        Tokens that do not continue what waits make a failure of their attempt.
        """
        backlog = self._backlogs.get(gateway_id)
        if backlog is None:
            return
        waiting = backlog.deltas.get(delta.attempt)
        backlog.deltas[delta.attempt] = delta if waiting is None else _merged(waiting, delta)
        backlog.news.set()

    async def listen(self, gateway_id: str) -> AsyncGenerator[list[TokenDelta], None]:
        """Yield everything new, once a wake-up. A second listener takes over from the first.

        The first list comes at once, empty if need be: it says that the stream stands.
        """
        backlog = self._backlog(gateway_id)
        me = backlog.listener = object()
        self._cancel_absence(backlog)
        backlog.news.set()  # also for the listener before us
        greeted = False
        try:
            while True:
                await backlog.news.wait()
                if backlog.listener is not me:
                    raise StaleReference(
                        f"another stream of gateway {gateway_id} took over", StaleKind.OWNER
                    )
                backlog.news.clear()
                if backlog.deltas or not greeted:
                    batch = list(backlog.deltas.values())
                    backlog.deltas.clear()
                    greeted = True
                    yield batch
        finally:
            if backlog.listener is me:
                backlog.listener = None
                self._watch_absence(gateway_id, backlog)
            else:
                backlog.news.set()  # the successor must not miss a wake-up

    @property
    def has_news(self) -> bool:
        """Something waits for a gateway that listens."""
        return any(b.deltas and b.listener is not None for b in self._backlogs.values())

    def close(self) -> None:
        for backlog in self._backlogs.values():
            self._cancel_absence(backlog)

    def _backlog(self, gateway_id: str) -> _Backlog:
        backlog = self._backlogs.get(gateway_id)
        if backlog is None:
            if len(self._backlogs) >= MAX_GATEWAYS:
                raise Overloaded(f"{MAX_GATEWAYS} gateways are served already")
            backlog = self._backlogs[gateway_id] = _Backlog()
            self._watch_absence(gateway_id, backlog)
        return backlog

    def _watch_absence(self, gateway_id: str, backlog: _Backlog) -> None:
        loop = asyncio.get_running_loop()
        self._cancel_absence(backlog)
        backlog.absence = loop.call_later(self._absence_seconds, self._gone, gateway_id)

    def _cancel_absence(self, backlog: _Backlog) -> None:
        if backlog.absence is not None:
            backlog.absence.cancel()
            backlog.absence = None

    def _gone(self, gateway_id: str) -> None:
        self._backlogs.pop(gateway_id, None)
        self._on_absent(gateway_id)


def _merged(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    if first.finish is not None or first.failure is not None:
        return first  # the first end is final
    if second.failure is not None and not second.token_ids:
        second = second._replace(position=first.position + len(first.token_ids))
    end = first.position + len(first.token_ids)
    if second.position != end:
        gap = f"tokens [{end}, {second.position}) were lost in the worker"
        return first._replace(failure=Failure(FailureKind.COMPUTE, gap))
    return first._replace(
        token_ids=first.token_ids + second.token_ids,
        finish=second.finish,
        failure=second.failure,
        cached_tokens=first.cached_tokens or second.cached_tokens,
    )
