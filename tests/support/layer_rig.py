"""A pair of workers that hands the last chunk of a prompt over in groups of layers."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fault_plan import FaultPlan
from faulty_transport import FaultyTransport
from worker_pair import NodeKind, PagedRunner, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.handoff import Announcement
from segue.cluster.identity import Peer, WorkerIdentity
from segue.kvtransfer.loopback_transport import LoopbackFabric, LoopbackTransport
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.kvtransfer.transport import Transport
from segue.workers.service import WorkerService

NUM_LAYERS = 6
PROMPT = range(30)  # 8 blocks, the last two of them in the last chunk
SOMEBODY = Peer(WorkerIdentity("prefill-0", "cafe"), "127.0.0.1:1")

TRANSPORTS: dict[str, Callable[[LoopbackFabric, str], Transport]] = {
    "loopback": LoopbackTransport,
    "nixl": lambda fabric, name: NixlTransport(name),
}


class Hears(WorkerService):
    """Keeps what was announced to it."""

    heard: list[Announcement]

    async def announce(self, announcement: Announcement) -> None:
        self.heard = [*getattr(self, "heard", ()), announcement]
        await super().announce(announcement)


@dataclass(slots=True)
class Reads:
    """What goes wrong in the reads of the target."""

    make: Callable[[LoopbackFabric, str], Transport] = LoopbackTransport
    now: FaultPlan = field(default_factory=FaultPlan)

    def transport(self, fabric: LoopbackFabric, name: str) -> Transport:
        return FaultyTransport(self.make(fabric, name), lambda: self.now)


@asynccontextmanager
async def opened(
    reads: Reads | None = None,
    *,
    layer_groups: int = 3,
    checksum: bool = True,
    runner: Callable[[int, int | None], PagedRunner] | None = None,
    max_attempts: int = 1,
    read_timeout_s: float = 5.0,
) -> AsyncIterator[Pair]:
    transfer = TransferConfig(
        transport="loopback",
        layer_groups=layer_groups,
        checksum=checksum,
        read_timeout_s=read_timeout_s,
    )
    kind = NodeKind(
        service=Hears,
        transport=(reads or Reads()).transport,
        runner=runner or (lambda blocks, groups: PagedRunner(blocks, NUM_LAYERS, groups)),
        chunk=8 if runner is None else 32,
    )
    async with worker_pair(
        transfer, max_attempts=max_attempts, prefill_kind=kind, decode_kind=kind
    ) as pair:
        yield pair


def heard(pair: Pair) -> list[Announcement]:
    service = pair.decode.service
    assert isinstance(service, Hears)
    return service.heard


def moved(pair: Pair) -> dict[str, int]:
    decode = pair.decode.service.decode
    return {
        "announced": decode.bytes_announced,
        "read": pair.decode.receiver.kv_bytes_read,
    }


def until_read(pair: Pair, num_bytes: int) -> None:
    """In an engine thread: the step does not go on before so much has arrived at the target."""
    end = time.monotonic() + 10.0
    while pair.decode.receiver.kv_bytes_read < num_bytes:
        assert time.monotonic() < end, "it does not come before the step ends"
        time.sleep(0.002)
