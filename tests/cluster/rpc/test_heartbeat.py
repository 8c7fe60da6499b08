"""The worker's side of the control plane when the controller is away, deaf or changed its mind."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from segue.cluster.errors import DeadlineExceeded, Unavailable
from segue.cluster.fleet import Registration
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.rpc import heartbeat
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc import serving_pb2_grpc as pb_grpc
from segue.cluster.rpc.heartbeat import HeartbeatClient
from segue.cluster.rpc.server import start_server
from segue.cluster.worker_status import WorkerStatus

TOKEN = "a-token-of-this-test"
ME = WorkerIdentity("decode-0", "life-1")


class Locator:
    """A controller that is nowhere; `lost` says whether it will ever come back."""

    def __init__(self, lost: bool, address: str | None = None) -> None:
        self.lost = lost
        self.known_address = address

    async def address(self) -> str:
        if self.known_address is None:
            raise Unavailable("no controller is known")
        return self.known_address

    async def gone(self) -> bool:
        return self.lost


def client(
    locator: Locator, on_leave: Callable[[str], None], orphan_after_s: float = 0.3
) -> HeartbeatClient:
    return HeartbeatClient(
        locator,
        TOKEN,
        Registration(Peer(ME, "127.0.0.1:1"), "decode", "decode", {}, 1),
        lambda: WorkerStatus(ME, "decode"),
        on_leave,
        orphan_after_s=orphan_after_s,
    )


class Refusing(pb_grpc.ControllerServicer):
    """A controller that will not have this worker."""

    def __init__(self) -> None:
        self.asked = 0

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        self.asked += 1
        return pb.RegisterReply(accepted=False, reason=f"{ME} was declared dead")

    async def Heartbeats(
        self, request_iterator: AsyncIterator[pb.Heartbeat], context: Any
    ) -> AsyncIterator[pb.HeartbeatReply]:
        raise AssertionError("who is not registered does not beat")
        yield pb.HeartbeatReply()

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.FleetSnapshot]:
        raise AssertionError("workers do not watch")
        yield pb.FleetSnapshot()


class Slow(Refusing):
    """Admits, and asks for few beats. `hears`: how many it answers before it ends the stream."""

    def __init__(self, interval_s: float, hears: int) -> None:
        super().__init__()
        self.interval_s, self.hears = interval_s, hears
        self.heard = 0

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        self.asked += 1
        return pb.RegisterReply(accepted=True, heartbeat_seconds=self.interval_s)

    async def Heartbeats(
        self, request_iterator: AsyncIterator[pb.Heartbeat], context: Any
    ) -> AsyncIterator[pb.HeartbeatReply]:
        answered = 0
        async for _ in request_iterator:
            if answered == self.hears:
                return
            answered += 1
            self.heard += 1
            yield pb.HeartbeatReply(known=True)


@asynccontextmanager
async def listening(controller: Refusing, token: str = TOKEN) -> AsyncIterator[str]:
    """Its address."""
    server = await start_server(
        token=token,
        host="127.0.0.1",
        register=lambda server: pb_grpc.add_ControllerServicer_to_server(controller, server),
    )
    try:
        yield server.address
    finally:
        await server.stop()


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("address", [None, free_address()], ids=["nowhere", "silent"])
async def test_orphan_is_told_once_and_beats_no_more(address: str | None) -> None:
    told: list[str] = []
    async with asyncio.timeout(15):
        await client(Locator(True, address), told.append).run()
    assert len(told) == 1 and "no controller for" in told[0]


async def test_worker_whose_controller_may_come_back_is_no_orphan() -> None:
    told: list[str] = []
    locator = Locator(False)
    beating = asyncio.create_task(client(locator, told.append).run())
    await asyncio.sleep(1.0)
    assert not told and not beating.done()
    locator.lost = True
    async with asyncio.timeout(10):
        await beating
    assert len(told) == 1


async def test_waiting_for_registration_ends_and_says_why() -> None:
    worker = client(Locator(False), lambda reason: None)
    beating = asyncio.create_task(worker.run())
    with pytest.raises(DeadlineExceeded, match="no controller is known"):
        await worker.wait_registered(0.5)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


async def test_a_worker_that_is_refused_leaves_though_the_controller_lives() -> None:
    """It holds a GPU, and a dead life never comes back."""
    told: list[str] = []
    async with listening(controller := Refusing()) as address, asyncio.timeout(15):
        await client(Locator(False, address), told.append, orphan_after_s=600).run()
    assert controller.asked == 1
    assert told == [f"not admitted: {ME} was declared dead"]


async def test_a_worker_whose_place_another_deployment_has_taken_leaves() -> None:
    """Under the controller's name somebody answers, who knows another token."""
    told: list[str] = []
    async with (
        listening(controller := Refusing(), "another-cluster-token") as address,
        asyncio.timeout(15),
    ):
        await client(Locator(False, address), told.append).run()
    assert controller.asked == 0
    assert len(told) == 1 and "token is missing or wrong" in told[0]


async def test_a_slow_beat_is_not_taken_for_a_lost_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE_S", 0.5)
    told: list[str] = []
    async with listening(controller := Slow(1.0, hears=100)) as address:
        beating = asyncio.create_task(client(Locator(True, address), told.append).run())
        async with asyncio.timeout(20):
            while controller.heard < 3:
                await asyncio.sleep(0.02)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert controller.asked == 1 and not told


async def test_a_worker_is_no_orphan_because_its_beats_are_far_apart() -> None:
    """The stream ends when the second beat is due: all that was heard is older than 0.3 s."""
    told: list[str] = []
    async with listening(controller := Slow(1.0, hears=1)) as address:
        beating = asyncio.create_task(client(Locator(True, address), told.append).run())
        async with asyncio.timeout(20):
            while controller.asked < 3 and not beating.done():
                await asyncio.sleep(0.02)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert controller.asked == 3 and not told
