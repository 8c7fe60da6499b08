"""Makes the acquaintance of workers whose KV this one reads: who fits, and whose bytes come right.

One introduction at a time serves all who ask; a failed one is tried again by the next.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, FailureKind, TransferError
from segue.cluster.handoff import WorkerDescription
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc.worker_client import WorkerClient
from segue.kvtransfer.layout import incompatibility
from segue.kvtransfer.medium import MediumKind
from segue.kvtransfer.preflight import ProbeResult, ProbesBusy
from segue.kvtransfer.probe_area import pattern
from segue.kvtransfer.receiver import Receiver
from segue.workers.pair_book import PairBook

logger = logging.getLogger(__name__)

SLOW_MEDIA = (MediumKind.TCP, MediumKind.UNKNOWN)
DESCRIBE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 5.0  # for the transfer thread, beyond what a preflight may take


class Introductions:
    """Lives on the event loop. What it finds out is noted in `pairs`."""

    def __init__(
        self,
        identity: WorkerIdentity,
        fingerprint: dict[str, str],
        transfer: TransferConfig,
        pairs: PairBook,
        client: Callable[[Peer], WorkerClient],
        clock: Callable[[], float],
        on_met: Callable[[WorkerIdentity, Receiver], None],
    ) -> None:
        """`on_met` hears of every one that succeeded, also if nobody waits for it any more."""
        self._identity = identity
        self._fingerprint = fingerprint
        self._transfer = transfer
        self._pairs = pairs
        self._client = client
        self._clock = clock
        self._on_met = on_met
        self._under_way: dict[WorkerIdentity, asyncio.Task[None]] = {}
        self._met: set[WorkerIdentity] = set()  # that they are connected alone proves nothing

    async def meet(self, source: Peer, receiver: Receiver) -> None:
        """Returns once `receiver` can read from `source`. Refuses what is not compatible, and
        whoever failed the preflight a moment ago."""
        identity = source.identity
        task = self._under_way.get(identity)
        if task is None:
            if identity in self._met and receiver.is_connected(identity.incarnation):
                return
            self._met.discard(identity)
            if (refusal := self._pairs.refusal(identity, self._clock())) is not None:
                raise AttemptFailed(FailureKind.PREFLIGHT, refusal)
            task = asyncio.create_task(self._introduce(source, receiver))
            self._under_way[identity] = task
            task.add_done_callback(lambda done: self._introduced(identity, receiver, done))
        await asyncio.shield(task)

    def _introduced(
        self, identity: WorkerIdentity, receiver: Receiver, task: asyncio.Task[None]
    ) -> None:
        self._under_way.pop(identity, None)
        if not task.cancelled() and task.exception() is None:
            self._met.add(identity)
            self._on_met(identity, receiver)

    def forget(self, identity: WorkerIdentity) -> None:
        """It was, or will be, disconnected."""
        self._met.discard(identity)

    async def _introduce(self, source: Peer, receiver: Receiver) -> None:
        theirs = await self._client(source).describe(deadline_s=DESCRIBE_SECONDS)
        difference = incompatibility(self._fingerprint, theirs.fingerprint)
        if difference is not None:
            message = f"{source.identity} cannot hand over to {self._identity}: {difference}"
            raise AttemptFailed(FailureKind.REFUSED, message, retryable=False)
        if theirs.transport != receiver.transport.name:
            message = f"transports differ: {theirs.transport} and {receiver.transport.name}"
            raise AttemptFailed(FailureKind.REFUSED, message, retryable=False)
        done = receiver.connect(
            source.identity.incarnation, theirs.transport_metadata, theirs.num_blocks
        )
        problem = ""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.wrap_future(done)
        except TimeoutError:
            problem = f"the transport did not connect within {CONNECT_SECONDS:g} s"
        except TransferError as error:
            problem = error.message
        if problem:
            self._refuse(source.identity, problem, None, receiver)
        await self._preflight(source.identity, theirs, receiver)

    def _refuse(
        self,
        source: WorkerIdentity,
        problem: str,
        result: ProbeResult | None,
        receiver: Receiver,
    ) -> NoReturn:
        refusal = f"no KV from {source} to {self._identity}: {problem}"
        self._pairs.note_failure(source, refusal, result, self._clock())
        receiver.disconnect(source.incarnation)
        logger.warning("preflight: %s", refusal)
        raise AttemptFailed(FailureKind.PREFLIGHT, refusal)

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
            async with asyncio.timeout(2 * timeout_s + ANSWER_SECONDS):
                result = await asyncio.wrap_future(probe.result)
            problem = self._objection(result)
        except ProbesBusy as error:
            receiver.disconnect(source.incarnation)
            message = f"{source} could not be met by {self._identity} now: {error.message}"
            raise AttemptFailed(FailureKind.BUSY, message) from error
        except TransferError as error:
            problem = error.message
        except TimeoutError:
            problem = "the transfer thread did not answer"
        if problem:
            self._refuse(source, problem, result, receiver)
        assert result is not None
        self._pairs.note_success(source, result, self._clock())
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
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
