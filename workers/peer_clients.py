"""The connections by which this worker calls others: one a worker's life, kept while it is of use.

One with a call under way is never closed; of the others a limited number is kept.
"""

import asyncio
from collections import OrderedDict

from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.rpc.worker_client import WorkerClient

# A connection that is given up closes when its calls have ended; each of them has a deadline of
# its own, and none is as long as this.
LONGEST_CALL_SECONDS = 3600.0


class PeerClients:
    """Lives on the event loop. Keyed by identity: a new life of a peer is a new peer."""

    def __init__(self, token: str, max_idle: int, security: Security = TOKEN_ALONE) -> None:
        self._token = token
        self._security = security
        self._max_idle = max_idle
        self._clients: OrderedDict[Peer, WorkerClient] = OrderedDict()  # last asked for last
        self._of_worker: dict[str, set[Peer]] = {}
        self._closing: dict[WorkerClient, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, peer: Peer) -> WorkerClient:
        """Call it before anything else is awaited: until then it counts as idle."""
        client = self._clients.get(peer)
        if client is None:
            self._close_idle_lives(of=peer)
            client = WorkerClient(
                peer, self._token, lambda: self._close(peer), security=self._security
            )
            self._clients[peer] = client
            self._of_worker.setdefault(peer.identity.worker_id, set()).add(peer)
            self._bound()
        self._clients.move_to_end(peer)
        return client

    def close_idle(self, life: WorkerIdentity) -> None:
        for peer in list(self._of_worker.get(life.worker_id, ())):
            if peer.identity == life and not self._clients[peer].num_calls:
                self._close(peer)

    def close_life(self, life: WorkerIdentity) -> None:
        """It is gone: calls that are under way will not be answered, and end by themselves."""
        for peer in list(self._of_worker.get(life.worker_id, ())):
            if peer.identity == life:
                self._close(peer)

    def _close_idle_lives(self, of: Peer) -> None:
        for peer in list(self._of_worker.get(of.identity.worker_id, ())):
            if peer.identity != of.identity:
                self.close_idle(peer.identity)

    def _bound(self) -> None:
        excess = len(self._clients) - self._max_idle
        if excess <= 0:
            return
        older = list(self._clients)[:-1]
        idle = [peer for peer in older if not self._clients[peer].num_calls]
        for peer in idle[:excess]:
            self._close(peer)

    def _close(self, peer: Peer) -> None:
        """A channel to a worker that is gone would go on dialling, and reach its next life."""
        client = self._clients.pop(peer, None)
        if client is None:
            return
        lives = self._of_worker[peer.identity.worker_id]
        lives.discard(peer)
        if not lives:
            del self._of_worker[peer.identity.worker_id]
        task = asyncio.create_task(client.close(LONGEST_CALL_SECONDS))
        self._closing[client] = task
        task.add_done_callback(lambda _: self._closing.pop(client, None))

    async def close(self) -> None:
        """Calls that are under way are cancelled."""
        leaving = dict(self._closing)
        for task in leaving.values():
            task.cancel()
        await asyncio.gather(*leaving.values(), return_exceptions=True)
        for client in (*leaving, *self._clients.values()):
            await client.close()
        self._clients.clear()
        self._of_worker.clear()
