"""The worker's side of the control plane: register, beat, and register again when asked to."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress

from segue.cluster.errors import DeadlineExceeded, SegueError, Unavailable, WrongToken
from segue.cluster.fleet import Registration, Sources
from segue.cluster.launcher import ControllerLocator
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc import serving_pb2_grpc as pb_grpc
from segue.cluster.rpc.channel import RpcChannel, open_channel
from segue.cluster.rpc.codec import identity_to_pb, peer_from_pb
from segue.cluster.rpc.fleet_codec import registration_to_pb, status_to_pb
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.worker_status import WorkerStatus

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 5.0
SILENCE_S = 5.0  # the controller answers every beat; longer after one was due: it is lost
MIN_BACKOFF_S = 0.2
MAX_BACKOFF_S = 2.0
ORPHAN_AFTER_S = 60.0


class HeartbeatClient:
    """Keeps one worker registered. `run` is its only task; `on_leave` is called at most once.

    How often to beat is the controller's to say. Nothing is missed before it was due.

    A worker leaves when the controller will not have it, which is never taken back, and when there
    is no controller of its own any more: else it would hold its GPU for ever.
    `on_sources` hears with every answered beat whom this worker may have to read from.
    """

    def __init__(
        self,
        locator: ControllerLocator,
        token: str,
        registration: Registration,
        status: Callable[[], WorkerStatus],
        on_leave: Callable[[str], None],
        *,
        on_sources: Callable[[Sources], None] = lambda sources: None,
        orphan_after_s: float = ORPHAN_AFTER_S,
        security: Security = TOKEN_ALONE,
    ) -> None:
        self._locator = locator
        self._token = token
        self._security = security
        self._registration = registration
        self._status = status
        self._on_leave = on_leave
        self._on_sources = on_sources
        self._orphan_after_s = orphan_after_s
        self._heard = time.monotonic()  # when a controller last knew this worker
        self._interval_s = 0.0  # between beats, once a controller has said it
        self._registered = asyncio.Event()
        self._news = asyncio.Event()
        self._trouble = ""
        self._dismissal = ""  # why the controller will never admit this worker
        self._is_foreign = False  # whoever answers in the controller's place is not our own

    async def run(self) -> None:
        """Beat until cancelled, or told to leave. An error in `status` ends it: the owner must
        know."""
        backoff = MIN_BACKOFF_S
        while True:
            heard_before = self._heard
            self._is_foreign = False
            try:
                await self._session()
                trouble = self._dismissal or "the controller does not know this worker"
            except SegueError as error:
                trouble = str(error)
                self._is_foreign = isinstance(error, WrongToken)
            self._registered.clear()
            if trouble != self._trouble:
                logger.info("%s: %s", self._registration.peer.identity, trouble)
            self._trouble = trouble
            if self._dismissal:
                self._on_leave(f"not admitted: {trouble}")
                return
            if await self._orphaned():
                silent = time.monotonic() - self._heard
                self._on_leave(f"no controller for {silent:.0f} s ({trouble})")
                return
            backoff = MIN_BACKOFF_S if self._heard > heard_before else backoff * 2
            await asyncio.sleep(min(backoff, MAX_BACKOFF_S))

    def beat_now(self) -> None:
        """There is news that should not wait for the next beat."""
        self._news.set()

    async def wait_registered(self, deadline_s: float) -> None:
        """Return once a controller has admitted this worker. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._registered.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"not registered within {deadline_s:.0f} s: {self._trouble}"
            ) from None

    async def _session(self) -> None:
        """Register and beat. Returns when the controller asks for a new registration, or has
        refused this one."""
        channel = open_channel(await self._locate(), self._token, security=self._security)
        try:
            reply = await self._register(channel)
            if reply.accepted:
                self._interval_s = reply.heartbeat_seconds
                await self._beat(channel)
            else:
                self._dismissal = reply.reason or "no reason was given"
        finally:
            await channel.close()

    async def _locate(self) -> str:
        try:
            async with asyncio.timeout(CALL_DEADLINE_S):
                return await self._locator.address()
        except TimeoutError:
            raise Unavailable("the controller's address could not be found out") from None

    async def _register(self, channel: RpcChannel) -> pb.RegisterReply:
        stub = pb_grpc.ControllerStub(channel.raw)
        reply = await channel.unary(
            stub.Register, registration_to_pb(self._registration), deadline_s=CALL_DEADLINE_S
        )
        if reply.accepted:
            self._trouble = ""
            self._heard = time.monotonic()
            self._registered.set()
        return reply

    async def _beat(self, channel: RpcChannel) -> None:
        identity = identity_to_pb(self._registration.peer.identity)

        failures: list[Exception] = []

        async def beats() -> AsyncIterator[pb.Heartbeat]:
            while True:
                self._news.clear()
                try:
                    beat = pb.Heartbeat(identity=identity, status=status_to_pb(self._status()))
                except Exception as error:  # gRPC would only log it
                    failures.append(error)
                    return
                yield beat
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), self._interval_s)

        stub = pb_grpc.ControllerStub(channel.raw)
        silence_s = self._interval_s + SILENCE_S
        replies = channel.exchange(stub.Heartbeats, beats(), silence_s=silence_s)
        async with aclosing(replies):
            async for reply in replies:
                if not reply.known:
                    return
                self._heard = time.monotonic()
                prompts, answers = (
                    map(peer_from_pb, reply.sources),
                    map(peer_from_pb, reply.writers),
                )
                self._on_sources(Sources(tuple(prompts), tuple(answers)))
        if failures:
            raise failures[0]
        raise Unavailable("the controller ended the heartbeat stream")

    async def _orphaned(self) -> bool:
        due = self._heard + self._interval_s
        if time.monotonic() - due < self._orphan_after_s:
            return False
        if self._is_foreign:
            return True
        try:
            async with asyncio.timeout(CALL_DEADLINE_S):
                return await self._locator.gone()
        except (TimeoutError, SegueError):
            return False
