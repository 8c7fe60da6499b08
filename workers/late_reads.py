"""Brings to an end the reads of handoffs that were given up, so that their blocks become free.

A read from a source that is gone may have no end of its own, and no timeout proves that its bytes
do not arrive any more. So its source is asked whether it is there. If it is not, or if reads have
not ended in all the time that they were given once more, it is disconnected: then the transport
ends them, as soon as that is certain.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from segue.cluster.errors import (
    ConnectionLost,
    DeadlineExceeded,
    SegueError,
    StaleKind,
    StaleReference,
)
from segue.cluster.identity import Peer, WorkerIdentity
from segue.kvtransfer.receiver import Receiver
from segue.workers.landing import Landing
from segue.workers.peers import Peers

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 5.0
MAX_MISSES = 2  # unanswered in a row; a connection that was just lost is made again


@dataclass(slots=True)
class _Watch:
    """One source whose reads are waited for."""

    num_landings: int
    task: asyncio.Task[None]


class LateReads:
    """Lives on the event loop. A living source has `patience_s` to end what it has begun."""

    def __init__(
        self, peers: Peers, receiver: Receiver, patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._peers = peers
        self._receiver = receiver
        self._patience_s = patience_s
        self._clock = clock
        self._watches: dict[WorkerIdentity, _Watch] = {}

    async def end(self, landing: Landing) -> None:
        """Returns when no byte can arrive for it any more."""
        if landing.is_terminal:
            return
        source = landing.source
        watch = self._watches.get(source.identity)
        if watch is None:
            task = asyncio.create_task(self._watch(source), name=f"reads of {source.identity}")
            watch = self._watches[source.identity] = _Watch(0, task)
        watch.num_landings += 1
        try:
            await landing.wait_terminal()
        finally:
            watch.num_landings -= 1
            if not watch.num_landings:
                watch.task.cancel()
                del self._watches[source.identity]

    async def _watch(self, source: Peer) -> None:
        misses, began = 0, self._clock()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            trouble, is_proof = await self._trouble(source)
            misses = misses + 1 if trouble else 0
            if misses < MAX_MISSES and not is_proof:
                if self._clock() - began < self._patience_s:
                    continue
                trouble = f"reads have not ended for {self._patience_s:g} s"
            number = self._watches[source.identity].num_landings
            reason = f"{number} given up handoffs wait for reads from it, and {trouble}"
            self._peers.part(source.identity, self._receiver, reason)
            misses, began = 0, self._clock()
            await asyncio.sleep(self._patience_s)  # it may be met again, and get stuck again

    async def _trouble(self, source: Peer) -> tuple[str, bool]:
        """What is wrong with the source, nothing if it answers, and whether it surely is gone."""
        try:
            client = self._peers.client(source)
            await client.renew(self._peers.identity, [], deadline_s=ANSWER_SECONDS)
        except (ConnectionLost, DeadlineExceeded) as error:
            return f"it cannot be reached: {error.message}", False
        except StaleReference as error:
            if error.stale is StaleKind.INCARNATION:
                return "another life is at its address", True
        except SegueError:
            pass  # whatever it says, it is there
        return "", False
