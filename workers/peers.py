"""The other workers that this one talks to: how they are called, and whose memory can be read."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import SegueError
from segue.cluster.fleet import Sources
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.rpc.worker_client import WorkerClient
from segue.cluster.worker_status import PairReport
from segue.kvtransfer.probe_area import NUM_SLOTS
from segue.kvtransfer.receiver import Receiver
from segue.workers.introductions import Introductions
from segue.workers.kept_lives import KeptLives
from segue.workers.pair_book import PairBook
from segue.workers.peer_clients import PeerClients

logger = logging.getLogger(__name__)

MAX_IDLE = 1024  # sources, and connections for calls, that are kept though nothing uses them
IDLE_SECONDS = 60.0  # a source that is not used, nor named by the controller, is kept for so long
SPREAD_SECONDS = 0.05  # a writer, over which the meetings of writers are spread


class Peers:
    """Lives on the event loop. Keyed by identity: a new life of a peer is a new peer."""

    def __init__(
        self,
        identity: WorkerIdentity,
        fingerprint: dict[str, str],
        token: str,
        transfer: TransferConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_idle: int = MAX_IDLE,
        security: Security = TOKEN_ALONE,
    ) -> None:
        self.identity = identity
        self.address = ""  # where we listen, once that is known
        self.fingerprint = fingerprint
        self.pairs = PairBook()
        self._clock = clock
        self._clients = PeerClients(token, max_idle, security)
        self._sources = KeptLives(max_idle, IDLE_SECONDS)
        self._introductions = Introductions(
            identity,
            fingerprint,
            transfer or TransferConfig(),
            self.pairs,
            lambda peer: self.client(peer),
            clock,
            self._keep,
        )
        self._greetings: dict[WorkerIdentity, asyncio.Task[None]] = {}
        self._max_idle = max_idle
        self._chance = random.Random()

    @property
    def me(self) -> Peer:
        return Peer(self.identity, self.address)

    def client(self, peer: Peer) -> WorkerClient:
        """Call it before anything else is awaited."""
        return self._clients.get(peer)

    def pair_reports(self) -> tuple[PairReport, ...]:
        return self.pairs.reports(self._clock())

    # -- those that are read from ------------------------------------------------------------

    async def connect(self, source: Peer, receiver: Receiver) -> None:
        """Make sure that `receiver` can read from `source`; it stays connected while it is in use.

        Refuses what is not compatible, and whoever failed the preflight a moment ago.
        """
        await self._introductions.meet(source, receiver)
        self._keep(source.identity, receiver)

    def _keep(self, source: WorkerIdentity, receiver: Receiver) -> None:
        self._let_go(self._sources.meet(source, self._clock()), receiver)

    def use(self, source: WorkerIdentity) -> None:
        """Something is to be read from it: see `end_use`."""
        self._sources.use(source)

    def end_use(self, source: WorkerIdentity, receiver: Receiver) -> None:
        """Once for each `use`, when no byte of it can arrive any more."""
        self._let_go(self._sources.end_use(source, self._clock()), receiver)

    @contextmanager
    def in_use(self, source: WorkerIdentity, receiver: Receiver) -> Iterator[None]:
        self.use(source)
        try:
            yield
        finally:
            self.end_use(source, receiver)

    def part(self, source: WorkerIdentity, receiver: Receiver, reason: str) -> None:
        """It is gone or out of reach: reads from it end as failed, when that is certain."""
        logger.warning("%s is disconnected: %s", source, reason)
        self._sources.drop(source)
        self._introductions.forget(source)
        self._clients.close_life(source)
        self.pairs.forget(source)
        receiver.disconnect(source.incarnation)

    def _let_go(self, sources: Iterable[WorkerIdentity], receiver: Receiver) -> None:
        for source in sources:
            logger.info("%s is disconnected: nothing is read from it", source)
            self._introductions.forget(source)
            self._clients.close_idle(source)
            receiver.disconnect(source.incarnation)

    # -- meeting before a request needs it ---------------------------------------------------

    def greet(self, sources: Sources, receiver: Receiver) -> None:
        """The controller's word on who lives. Failures of those that are met are in `pairs`.

        Those that read prompts first, a few at a time. Those that write answers only when all of
        them are met, one at a time, any of them, after a while of its own: a worker that is new is
        not read by all others at once.
        """
        self._hear_of(sources, receiver)
        for source in sources.of_prompts:
            if len(self._greetings) < NUM_SLOTS and self._is_unmet(source, receiver):
                self._begin_greeting(source, receiver, 0.0)
        writers = [] if self._greetings else sources.of_answers
        if unmet := [writer for writer in writers if self._is_unmet(writer, receiver)]:
            pause = self._chance.uniform(0.0, SPREAD_SECONDS * len(writers))
            self._begin_greeting(self._chance.choice(unmet), receiver, pause)

    def _hear_of(self, sources: Sources, receiver: Receiver) -> None:
        now = self._clock()
        named = [peer.identity for peer in (*sources.of_prompts, *sources.of_answers)]
        for life in self._sources.hear_of(named, now):
            self.part(life, receiver, "another life took its place")
        self._let_go(self._sources.expire(now), receiver)

    def _is_unmet(self, source: Peer, receiver: Receiver) -> bool:
        identity = source.identity
        return not (
            identity in self._greetings
            or self._sources.num_idle >= self._max_idle
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

    async def close(self) -> None:
        tasks = list(self._greetings.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._introductions.close()
        await self._clients.close()
