"""The gateway's side of the control plane: keeps the newest fleet view, whatever happens."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing

from segue.cluster.change_bell import ChangeBell
from segue.cluster.errors import DeadlineExceeded, SegueError, Unavailable
from segue.cluster.fleet import FleetView
from segue.cluster.launcher import ControllerLocator
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc import serving_pb2_grpc as pb_grpc
from segue.cluster.rpc.channel import open_channel
from segue.cluster.rpc.fleet_codec import fleet_from_pb
from segue.cluster.rpc.security import TOKEN_ALONE, Security

logger = logging.getLogger(__name__)

LOCATE_DEADLINE_S = 5.0
SILENCE_S = 10.0  # more than a restarted controller takes to find its workers again
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0


class FleetWatcher:
    """Without a controller the last view stays: workers serve on, only changes are not seen."""

    def __init__(
        self, locator: ControllerLocator, token: str, security: Security = TOKEN_ALONE
    ) -> None:
        self._locator = locator
        self._token = token
        self._security = security
        self._callbacks: list[Callable[[FleetView], None]] = []
        self._bell = ChangeBell()
        self._received = time.monotonic()
        self.view = FleetView()
        self.trouble = ""  # why no newer view comes

    @property
    def age_seconds(self) -> float:
        """How old `view` is; before the first one, how long it has been waited for."""
        return time.monotonic() - self._received

    def on_change(self, callback: Callable[[FleetView], None]) -> None:
        """Call `callback` with every view, in order, in the watcher's event loop."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Follow the controller until cancelled. A callback's error ends it."""
        backoff = MIN_BACKOFF_S
        while True:
            before = self._received
            try:
                await self._follow()
            except SegueError as error:
                if str(error) != self.trouble:
                    logger.info("fleet view: %s", error)
                self.trouble = str(error)
            backoff = MIN_BACKOFF_S if self._received > before else min(backoff * 2, MAX_BACKOFF_S)
            await asyncio.sleep(backoff)

    async def wait_until(self, condition: Callable[[FleetView], bool], deadline_s: float) -> None:
        """Return once the newest view satisfies `condition`. Raises DeadlineExceeded."""
        deadline = time.monotonic() + deadline_s
        while True:
            rung = self._bell.rung
            if condition(self.view):
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(f"the fleet was not ready within {deadline_s:.0f} s")
            await self._bell.wait_past(rung, left)

    async def _follow(self) -> None:
        try:
            async with asyncio.timeout(LOCATE_DEADLINE_S):
                address = await self._locator.address()
        except TimeoutError:
            raise Unavailable("the controller's address could not be found out") from None
        channel = open_channel(address, self._token, security=self._security)
        try:
            stub = pb_grpc.ControllerStub(channel.raw)
            snapshots = channel.stream(stub.Watch, pb.WatchRequest(), silence_s=SILENCE_S)
            async with aclosing(snapshots):
                async for snapshot in snapshots:
                    self._accept(fleet_from_pb(snapshot))
        finally:
            await channel.close()
        raise Unavailable("the controller ended the stream of views")

    def _accept(self, view: FleetView) -> None:
        known = self.view
        same_life = view.controller_incarnation == known.controller_incarnation
        if same_life and view.sequence <= known.sequence:
            return
        self.view = view
        self._received = time.monotonic()
        self.trouble = ""
        for callback in self._callbacks:
            callback(view)
        self._bell.ring()
