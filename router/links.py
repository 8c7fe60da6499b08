"""One connection to each worker of the fleet: its frames come in here and go to their attempts.

A link that breaks fails every attempt on that worker at once; it is opened again as long as the
fleet view lists the worker. Nothing is resumed: the journeys recover. A worker that still writes an
answer nobody waits for (the Abort was lost while it was cut off) is told again to stop.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from segue.cluster.errors import SegueError
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.handoff import TokenDelta
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.rpc.worker_client import WorkerClient

logger = logging.getLogger(__name__)

ABORT_SECONDS = 5.0
RECONNECT_SECONDS = 0.5
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DeltaFrom:
    worker: WorkerIdentity
    delta: TokenDelta


@dataclass(frozen=True, slots=True)
class LinkLost:
    worker: WorkerIdentity
    reason: str


Event = DeltaFrom | LinkLost
Hear = Callable[[Event], None]


@dataclass(slots=True, eq=False)
class _Inbox:
    """Who is told, at once and in order, of what happens to one attempt at these workers."""

    workers: frozenset[WorkerIdentity]
    hear: Hear


@dataclass(slots=True, eq=False)
class _Link:
    client: WorkerClient
    usable: bool = False  # its stream stands: a first frame has come
    task: asyncio.Task[None] | None = None
    aborting: set[AttemptId] = field(default_factory=set)  # calls in flight; bounded by time


class WorkerLinks:
    def __init__(self, gateway_id: str, token: str, security: Security = TOKEN_ALONE) -> None:
        self.gateway_id = gateway_id
        self._token = token
        self._security = security
        self._links: dict[WorkerIdentity, _Link] = {}
        self._inboxes: dict[AttemptId, _Inbox] = {}
        self._background: set[asyncio.Task[None]] = set()

    def usable(self, identity: WorkerIdentity) -> bool:
        link = self._links.get(identity)
        return link is not None and link.usable

    def client(self, identity: WorkerIdentity) -> WorkerClient | None:
        link = self._links.get(identity)
        return None if link is None else link.client

    def on_fleet_change(self, view: FleetView) -> None:
        """Open links to new workers; close those to workers that are dead or gone."""
        living = {
            worker.identity: worker
            for worker in view.workers
            if worker.peer is not None and worker.state is not WorkerState.DEAD
        }
        for identity in [known for known in self._links if known not in living]:
            self._close(identity, "the worker was declared dead")
        for identity, worker in living.items():
            if identity not in self._links:
                self._open(worker)

    def open_inbox(self, attempt: AttemptId, workers: Iterable[WorkerIdentity], hear: Hear) -> None:
        """`hear` must not raise, nor wait: whatever else the workers say comes behind it."""
        self._inboxes[attempt] = _Inbox(frozenset(workers), hear)

    def widen_inbox(self, attempt: AttemptId, worker: WorkerIdentity) -> None:
        """What `worker` says of the attempt comes to its inbox too."""
        inbox = self._inboxes.get(attempt)
        if inbox is not None:
            inbox.workers |= {worker}

    def close_inbox(self, attempt: AttemptId) -> None:
        self._inboxes.pop(attempt, None)

    def abort(self, attempt: AttemptId, workers: Iterable[WorkerIdentity]) -> None:
        """Tell workers, in the background, that nobody wants this attempt any more."""
        for identity in workers:
            link = self._links.get(identity)
            if link is not None:
                self._abort(link, [attempt])

    async def close(self) -> None:
        await self._finish_calls()  # so that aborts still arrive
        for identity in list(self._links):
            self._close(identity, "the gateway stops")
        await self._finish_calls()

    async def _finish_calls(self) -> None:
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_SECONDS)

    # -- links -------------------------------------------------------------------------------

    def _open(self, worker: WorkerView) -> None:
        assert worker.peer is not None
        link = _Link(WorkerClient(worker.peer, self._token, security=self._security))
        self._links[worker.identity] = link
        link.task = asyncio.create_task(self._follow(link), name=f"frames {worker.identity}")

    def _close(self, identity: WorkerIdentity, reason: str) -> None:
        link = self._links.pop(identity)
        if link.task is not None:
            link.task.cancel()
        self._lost(identity, reason)
        self._in_background(link.client.close())

    async def _follow(self, link: _Link) -> None:
        identity = link.client.peer.identity
        while True:
            reason = "the worker ended the stream"
            try:
                async with aclosing(link.client.frames(self.gateway_id)) as frames:
                    async for deltas in frames:
                        link.usable = True
                        self._deliver(link, deltas)
            except SegueError as error:
                reason = error.message
            except Exception as error:  # else nobody would ever hear of this worker again
                logger.exception("following %s failed", identity)
                reason = repr(error)
            logger.log(logging.INFO if link.usable else logging.DEBUG, "%s: %s", identity, reason)
            link.usable = False
            self._lost(identity, reason)
            await asyncio.sleep(RECONNECT_SECONDS)

    def _deliver(self, link: _Link, deltas: list[TokenDelta]) -> None:
        identity = link.client.peer.identity
        unwanted = []
        for delta in deltas:
            inbox = self._inboxes.get(delta.attempt)
            if inbox is not None and identity in inbox.workers:
                inbox.hear(DeltaFrom(identity, delta))
            elif delta.finish is None and delta.failure is None:
                unwanted.append(delta.attempt)
        self._abort(link, unwanted)

    def _abort(self, link: _Link, attempts: list[AttemptId]) -> None:
        fresh = [attempt for attempt in attempts if attempt not in link.aborting]
        if fresh:
            link.aborting.update(fresh)
            self._in_background(_abort(link, fresh))

    def _lost(self, identity: WorkerIdentity, reason: str) -> None:
        for inbox in list(self._inboxes.values()):  # who hears of it may close some
            if identity in inbox.workers:
                inbox.hear(LinkLost(identity, reason))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _abort(link: _Link, attempts: list[AttemptId]) -> None:
    try:
        await link.client.abort(attempts, deadline_s=ABORT_SECONDS)
    except SegueError as error:  # it is gone, and the attempts with it, or cut off
        logger.debug("could not abort at %s: %s", link.client.peer.identity, error)
    finally:
        link.aborting.difference_update(attempts)
