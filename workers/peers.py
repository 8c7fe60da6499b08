"""The other workers that this one talks to: a client each, and what is known of their memory."""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, FailureKind, SegueError, TransferError
from segue.cluster.fleet import Sources
from segue.cluster.handoff import WorkerDescription
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc.worker_client import WorkerClient
from segue.cluster.worker_status import PairReport
from segue.kvtransfer.layout import incompatibility
from segue.kvtransfer.medium import MediumKind
from segue.kvtransfer.preflight import ProbeResult
from segue.kvtransfer.probe_area import NUM_SLOTS, pattern
from segue.kvtransfer.receiver import Receiver
from segue.workers.pair_book import PairBook

logger = logging.getLogger(__name__)

SLOW_MEDIA = (MediumKind.TCP, MediumKind.UNKNOWN)
DESCRIBE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
MAX_CLIENTS = 256
SPREAD_SECONDS = 0.05  # a writer, over which the meetings of writers are spread
CLOSE_SECONDS = 5.0  # for the calls that a forgotten client still has under way


class Peers:
    """Lives on the event loop. Keyed by identity: a new life of a peer is a new peer."""

    def __init__(
        self,
        identity: WorkerIdentity,
        fingerprint: dict[str, str],
        token: str,
        transfer: TransferConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.address = ""  # where we listen, once that is known
        self.fingerprint = fingerprint
        self._token = token
        self._clients: OrderedDict[Peer, WorkerClient] = OrderedDict()
        self._connections: OrderedDict[WorkerIdentity, asyncio.Task[None]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._greetings: dict[WorkerIdentity, asyncio.Task[None]] = {}
        self._transfer = transfer or TransferConfig()
        self._clock = clock
        self._chance = random.Random()
        self.pairs = PairBook()

    @property
    def me(self) -> Peer:
        return Peer(self.identity, self.address)

    def client(self, peer: Peer) -> WorkerClient:
        client = self._clients.get(peer)
        if client is None:
            client = WorkerClient(peer, self._token, lambda: self._forget(peer))
            self._clients[peer] = client
            if len(self._clients) > MAX_CLIENTS:
                self._forget(next(iter(self._clients)))
        self._clients.move_to_end(peer)
        return client

    def pair_reports(self) -> tuple[PairReport, ...]:
        return self.pairs.reports(self._clock())

    def _forget(self, peer: Peer) -> None:
        """A channel to a worker that is gone would go on dialling, and reach its next life."""
        client = self._clients.pop(peer, None)
        if client is not None:
            task = asyncio.create_task(client.close(CLOSE_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def connect(self, source: Peer, receiver: Receiver) -> None:
        """Make sure that `receiver` can read from `source`; refuse what is not compatible, and
        whoever failed the preflight a moment ago.

        One introduction at a time serves all who ask; a failed one is tried again by the next.
        """
        identity = source.identity
        task = self._connections.get(identity)
        if task is None or (task.done() and not receiver.is_connected(identity.incarnation)):
            if (refusal := self.pairs.refusal(identity, self._clock())) is not None:
                raise AttemptFailed(FailureKind.PREFLIGHT, refusal)
            task = asyncio.create_task(self._introduce(source, receiver))
            task.add_done_callback(lambda done: self._introduced(identity, done))
            self._connections[identity] = task
            while len(self._connections) > MAX_CLIENTS:
                oldest, _ = self._connections.popitem(last=False)
                receiver.disconnect(oldest.incarnation)
        self._connections.move_to_end(identity)
        await asyncio.shield(task)

    def greet(self, sources: Sources, receiver: Receiver) -> None:
        """Meet these before a request needs it; failures are in `pairs`.

        Those that read prompts first, a few at a time. Those that write answers only when all of
        them are met, one at a time, any of them, after a while of its own: a worker that is new is
        not read by all others at once.
        """
        for source in sources.of_prompts:
            if len(self._greetings) < NUM_SLOTS and self._is_unmet(source, receiver):
                self._begin_greeting(source, receiver, 0.0)
        writers = [] if self._greetings else sources.of_answers
        if unmet := [writer for writer in writers if self._is_unmet(writer, receiver)]:
            pause = self._chance.uniform(0.0, SPREAD_SECONDS * len(writers))
            self._begin_greeting(self._chance.choice(unmet), receiver, pause)

    def _is_unmet(self, source: Peer, receiver: Receiver) -> bool:
        identity = source.identity
        return not (
            identity in self._greetings
            or len(self._connections) >= MAX_CLIENTS
            or self.pairs.refusal(identity, self._clock()) is not None
            or receiver.is_connected(identity.incarnation)
        )

    def _begin_greeting(self, source: Peer, receiver: Receiver, pause_s: float) -> None:
        task = asyncio.create_task(self._greet(source, receiver, pause_s))
        self._greetings[source.identity] = task

    async def _greet(self, source: Peer, receiver: Receiver, pause_s: float) -> None:
        try:
            await asyncio.sleep(pause_s)
            await self.connect(source, receiver)
        except SegueError as error:
            logger.info("cannot meet %s yet: %s", source.identity, error)
        except Exception:
            logger.exception("meeting %s failed", source.identity)
        finally:
            del self._greetings[source.identity]

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
        await self._preflight(source.identity, theirs, receiver)

    async def _preflight(
        self, source: WorkerIdentity, theirs: WorkerDescription, receiver: Receiver
    ) -> None:
        """Read the source's pattern; raises AttemptFailed if the pair must not be used."""
        num_bytes = min(theirs.probe_bytes, receiver.probe_bytes)
        timeout_s = self._transfer.preflight_timeout_s
        probe = receiver.probe(
            source.incarnation, pattern(source.incarnation, num_bytes), timeout_s
        )
        result: ProbeResult | None = None
        try:
            async with asyncio.timeout(timeout_s + DESCRIBE_SECONDS):
                result = await asyncio.wrap_future(probe.result)
            problem = self._objection(result)
        except TransferError as error:
            problem = error.message
        except TimeoutError:
            problem = "the transfer thread did not answer"
        if problem:
            refusal = f"no KV from {source} to {self.identity}: {problem}"
            self.pairs.note_failure(source, refusal, result, self._clock())
            receiver.disconnect(source.incarnation)
            logger.warning("preflight: %s", refusal)
            raise AttemptFailed(FailureKind.PREFLIGHT, refusal)
        assert result is not None
        self.pairs.note_success(source, result, self._clock())
        medium = result.medium
        logger.log(
            logging.WARNING if medium.kind in SLOW_MEDIA else logging.INFO,
            "preflight: KV from %s comes over %s (%s) at %.2f GB/s",
            *(source, medium.kind, medium.detail or "no details", result.gigabytes_per_second),
        )

    def _objection(self, result: ProbeResult) -> str:
        required, medium = self._transfer.require_transport, result.medium
        if required in ("any", medium.kind.value):
            return ""
        detail = f" ({medium.detail})" if medium.detail else ""
        return (
            f"transfer.require_transport is {required}, but the bytes come over "
            f"{medium.kind}{detail} at {result.gigabytes_per_second:.2f} GB/s"
        )

    async def close(self) -> None:
        tasks = [*self._greetings.values(), *self._connections.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
