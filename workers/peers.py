"""The other workers that this one talks to: a client each, and what is known of their memory."""

import asyncio
from collections import OrderedDict

from segue.cluster.errors import AttemptFailed, FailureKind, TransferError
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc.worker_client import WorkerClient
from segue.kvtransfer.layout import incompatibility
from segue.kvtransfer.receiver import Receiver

DESCRIBE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
MAX_CLIENTS = 256


class Peers:
    """Lives on the event loop. Keyed by identity: a new life of a peer is a new peer."""

    def __init__(self, identity: WorkerIdentity, fingerprint: dict[str, str], token: str) -> None:
        self.identity = identity
        self.address = ""  # where we listen, once that is known
        self.fingerprint = fingerprint
        self._token = token
        self._clients: OrderedDict[Peer, WorkerClient] = OrderedDict()
        self._connections: OrderedDict[WorkerIdentity, asyncio.Task[None]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def me(self) -> Peer:
        return Peer(self.identity, self.address)

    def client(self, peer: Peer) -> WorkerClient:
        client = self._clients.get(peer)
        if client is None:
            client = self._clients[peer] = WorkerClient(peer, self._token)
            if len(self._clients) > MAX_CLIENTS:
                _, oldest = self._clients.popitem(last=False)
                task = asyncio.create_task(oldest.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._clients.move_to_end(peer)
        return client

    async def connect(self, source: Peer, receiver: Receiver) -> None:
        """Make sure that `receiver` can read from `source`; refuse what is not compatible.

        One introduction at a time serves all who ask; a failed one is tried again by the next.
        """
        identity = source.identity
        task = self._connections.get(identity)
        if task is None or (task.done() and not receiver.is_connected(identity.incarnation)):
            task = asyncio.create_task(self._introduce(source, receiver))
            task.add_done_callback(lambda done: self._introduced(identity, done))
            self._connections[identity] = task
            while len(self._connections) > MAX_CLIENTS:
                oldest, _ = self._connections.popitem(last=False)
                receiver.disconnect(oldest.incarnation)
        self._connections.move_to_end(identity)
        await asyncio.shield(task)

    def _introduced(self, identity: WorkerIdentity, task: asyncio.Task[None]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and self._connections.get(identity) is task:
            del self._connections[identity]

    async def _introduce(self, source: Peer, receiver: Receiver) -> None:
        theirs = await self.client(source).describe(deadline_s=DESCRIBE_SECONDS)
        difference = incompatibility(self.fingerprint, theirs.fingerprint)
        if difference is not None:
            message = f"{source.identity} cannot hand over to {self.me.identity}: {difference}"
            raise AttemptFailed(FailureKind.REFUSED, message, retryable=False)
        if theirs.transport != receiver.transport.name:
            message = f"transports differ: {theirs.transport} and {receiver.transport.name}"
            raise AttemptFailed(FailureKind.REFUSED, message, retryable=False)
        done = receiver.connect(
            source.identity.incarnation, theirs.transport_metadata, theirs.num_blocks
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.wrap_future(done)
        except TimeoutError:
            message = f"the transport did not connect to {source.identity}"
            raise TransferError(message) from None

    async def close(self) -> None:
        for task in self._connections.values():
            task.cancel()
        await asyncio.gather(*self._connections.values(), return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
