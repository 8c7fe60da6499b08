"""Keeps the leases of what is landing here alive at their sources, one call a source."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from segue.cluster.errors import SegueError, StaleReference
from segue.cluster.identity import WorkerIdentity
from segue.workers.landing import Landing
from segue.workers.peers import Peers

logger = logging.getLogger(__name__)

MAX_CALL_SECONDS = 5.0


class LeaseRenewal:
    """Runs while something is landing. `give_up(landing, reason)`: its lease is lost."""

    def __init__(
        self,
        peers: Peers,
        lease_s: float,
        clock: Callable[[], float],
        landings: Callable[[], Iterable[Landing]],
        give_up: Callable[[Landing, str], None],
    ) -> None:
        self._peers = peers
        self._lease_s = lease_s
        self._clock = clock
        self._landings = landings
        self._give_up = give_up
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call when something begins to land; harmless if it runs already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="renewal")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Every third of a lease, all sources at once: a silent one must not delay the others."""
        while list(self._landings()):
            await asyncio.sleep(self._lease_s / 3)
            by_source: dict[WorkerIdentity, list[Landing]] = {}
            for landing in self._landings():
                if landing.has_credit and not landing.releasing:
                    by_source.setdefault(landing.source.identity, []).append(landing)
            await asyncio.gather(*map(self._renew_or_not, by_source.values()))

    async def _renew_or_not(self, landings: list[Landing]) -> None:
        """A defect with one source must not cost the leases of the others."""
        try:
            await self._renew(landings)
        except Exception:
            logger.exception("renewing leases at %s failed", landings[0].source.identity)

    async def _renew(self, landings: list[Landing]) -> None:
        source = landings[0].source
        lease_ids = [landing.sequence.lease_id for landing in landings]
        try:
            unknown = await self._peers.client(source).renew(
                self._peers.identity,
                lease_ids,
                deadline_s=min(MAX_CALL_SECONDS, self._lease_s / 3),
            )
        except StaleReference:  # another life answers at its address
            for landing in landings:
                self._give_up(landing, f"{source.identity} is gone")
            return
        except SegueError as error:
            logger.warning("could not renew leases at %s: %s", source.identity, error)
            lapsed = self._clock() - self._lease_s
            for landing in landings:
                if landing.renewed_at <= lapsed:
                    self._give_up(landing, f"{source.identity} does not answer")
            return
        for landing in landings:
            if landing.sequence.lease_id in unknown:
                self._give_up(landing, "the source lost its lease")
            else:
                landing.renewed_at = self._clock()
