"""A prefill and a decode worker in one process: real gRPC, real engines, a fake model.

KV moves by the loopback transport, so a read can be delayed, dropped, failed or corrupted. The
fake model reads every token of a sequence back from its paged memory: what was not moved rightly
gives another answer.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from engine_parts import FakeRunner, make_scheduler
from local_fleet import TOKEN, Answer, leftovers

from segue.cluster.config.gateway import RecoveryConfig
from segue.cluster.config.pool import Role
from segue.cluster.config.transfer import TransferConfig
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.identity import Peer, WorkerIdentity, new_incarnation
from segue.cluster.launcher import StaticLocator
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.cluster.retention import Retention
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.cluster.rpc.server import RpcServer, start_server
from segue.cluster.rpc.worker_client import WorkerClient
from segue.cluster.rpc.worker_service import add_worker_service
from segue.cluster.worker_api import WorkerApi
from segue.kvtransfer.checksum import host_checksums, memory_view
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.loopback_transport import LoopbackFabric, LoopbackTransport
from segue.kvtransfer.probe_area import ProbeArea, area_bytes
from segue.kvtransfer.receiver import Receiver
from segue.kvtransfer.transport import Transport
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks
from segue.workers.batch import PackedBatch
from segue.workers.engine import Engine
from segue.workers.kvcache.block_operations import BlockOperation, CopyBlock
from segue.workers.models.layer_clock import group_ends
from segue.workers.parts import WorkerFacts, WorkerParts
from segue.workers.peers import MAX_IDLE, Peers
from segue.workers.plan_recorder import PlanRecorder
from segue.workers.service import WorkerService
from segue.workers.step_execution import LayerNews, StepExecution
from segue.workers.step_outcome import StepOutcome

BLOCK_SIZE = 4
GATE_SECONDS = 20.0
PROBE_BYTES = 4096


class PagedRunner(FakeRunner):
    """The fake model on memory that a transport can move; `gate` holds up its steps.

    Every layer holds every token in its own way. What the model says is right only if all of them
    are there and agree. `told`, and `on_told` in the engine thread, hear what it told of layers.
    """

    block_size = BLOCK_SIZE

    def __init__(self, num_blocks: int, num_layers: int = 1, layer_groups: int | None = 1) -> None:
        super().__init__(num_blocks, BLOCK_SIZE)
        self.layout = KVLayout(num_blocks, num_layers, 1, BLOCK_SIZE, 1, "int32", 4)
        self.group_ends = group_ends(num_layers, layer_groups)
        self.told: list[int] = []
        self.on_told: Callable[[int], None] = lambda num_layers: None
        # The blocks and, behind them, the memory of preflights.
        self.allocation = np.full(self.layout.num_bytes + area_bytes(PROBE_BYTES), 255, np.uint8)
        blocks, self.spare_bytes = np.split(self.allocation, [self.layout.num_bytes])
        self.memory = blocks.view(np.int32).reshape(num_blocks, num_layers, 2 * BLOCK_SIZE)
        self.slots = self.memory[:, 0]  # type: ignore[assignment]  # indexed in the same way
        self.gate = threading.Event()
        self.gate.set()
        self.step_seconds = 0.0

    @property
    def region(self) -> memoryview:
        return memory_view(self.memory.ctypes.data, self.layout.num_bytes)

    def checksums(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(host_checksums(self.region, self.layout)(block_ids))

    def execute(self, batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
        assert self.gate.wait(GATE_SECONDS), "a test forgot to open the gate"
        time.sleep(self.step_seconds)
        for layer in range(1, self.layout.num_layers + 1):
            self._write(batch, layer - 1)
            if on_layers is not None and layer in self.group_ends:
                on_layers(layer)
                self.told.append(layer)
                self.on_told(layer)
        return super().execute(batch)

    def _write(self, batch: PackedBatch, layer: int) -> None:
        for piece in batch.in_slices().slices:
            for position, token in enumerate(piece.token_ids, piece.start):
                block, slot = divmod(position, BLOCK_SIZE)
                self.memory[piece.block_ids[block], layer, slot] = token + layer

    def token_at(self, block_id: int, slot: int) -> int:
        tokens = [int(row[slot]) - layer for layer, row in enumerate(self.memory[block_id])]
        return tokens[0] if len(set(tokens)) == 1 else sum(map(abs, tokens))

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        for operation in operations:
            assert isinstance(operation, CopyBlock)
            source, target = self.memory[operation.source], self.memory[operation.target]
            target[:, : operation.num_tokens] = source[:, : operation.num_tokens]


@dataclass(slots=True)
class Node:
    """One worker. `stop` ends it without a word, as a kill would."""

    role: Role
    service: WorkerService
    runner: PagedRunner
    engine: Engine
    receiver: Receiver
    server: RpcServer
    client: WorkerClient

    @property
    def identity(self) -> WorkerIdentity:
        return self.service.identity

    @property
    def peer(self) -> Peer:
        return self.service.parts.peers.me

    @property
    def block_bytes(self) -> int:
        return self.runner.layout.block_bytes

    @property
    def view(self) -> WorkerView:
        return WorkerView(self.identity, self.role, self.role, WorkerState.READY, peer=self.peer)

    def held(self) -> dict[str, float]:
        found = leftovers(self.service.status_now())
        if self.engine.num_sequences:
            found["engine_sequences"] = self.engine.num_sequences
        return found

    async def stop(self) -> None:
        self.runner.gate.set()
        await self.server.stop()
        if self.engine.is_alive:
            await asyncio.to_thread(self.engine.stop)
            await asyncio.to_thread(self.receiver.stop)
        await self.service.close()
        await self.client.close()


@dataclass(slots=True)
class Pair:
    fabric: LoopbackFabric
    prefill: Node
    decode: Node
    watcher: FleetWatcher
    links: WorkerLinks
    journeys: Journeys
    transfer: TransferConfig
    nodes: list[Node] = field(default_factory=list)

    async def replace(self, old: Node) -> Node:
        """Another life of the same worker, at another address; `show` lists it."""
        new = await start_node(
            self.fabric, old.role, self.transfer, worker_id=old.identity.worker_id
        )
        self.nodes.append(new)
        return new

    async def another(self, role: Role, worker_id: str, kind: "NodeKind | None" = None) -> Node:
        """One more worker; `show` lists it."""
        node = await start_node(
            self.fabric, role, self.transfer, worker_id=worker_id, kind=kind or NodeKind()
        )
        self.nodes.append(node)
        return node

    async def ask(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        request_id: str | None = None,
        stop: frozenset[int] = frozenset(),
        retention: Retention | None = None,
        on_token: Callable[[Answer], None] | None = None,
    ) -> Answer:
        answer = Answer()
        request = GenerationRequest(
            request_id or new_incarnation(),
            tuple(prompt),
            SamplingParams(temperature=0.0),
            StopRule(max_tokens, 0, stop),
            retention=retention or Retention(),
        )
        async with aclosing(self.journeys.generate(request)) as events:
            async for event in events:
                answer.tokens.extend(event.token_ids)
                answer.finish = event.finish
                answer.cached_tokens = answer.cached_tokens or event.cached_tokens
                if on_token is not None:
                    on_token(answer)
        return answer

    def show(self, *nodes: Node) -> None:
        """The fleet consists of these from now on."""
        self.watcher.view = FleetView(workers=tuple(node.view for node in nodes))
        self.links.on_fleet_change(self.watcher.view)

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            await asyncio.sleep(0.002)

    async def settled(self, *nodes: Node, timeout_s: float = 5.0) -> None:
        """Nothing is held by `nodes` (all if none is named), now or soon."""
        for node in nodes or (self.prefill, self.decode):
            end = time.monotonic() + timeout_s
            while found := node.held():
                assert time.monotonic() < end, f"{node.identity} still holds {found}"
                await asyncio.sleep(0.005)
            cache = node.engine.cache
            check = node.engine.call(lambda cache=cache: cache.check_integrity([]))  # type: ignore[misc]
            await asyncio.wrap_future(check)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Classes that misbehave in one way, and settings, for one node."""

    service: type[WorkerService] = WorkerService
    engine: type[Engine] = Engine
    absence_s: float = 10.0
    stalled_after_s: float = 60.0
    expected_output: str | int = "full"
    receiver: type[Receiver] = Receiver
    transport: Callable[[LoopbackFabric, str], Transport] = LoopbackTransport
    calls: Callable[[WorkerService], WorkerApi] = lambda service: service
    chunk: int = 8
    max_idle: int = MAX_IDLE  # other workers that it stays connected to without need
    # Of a number of blocks, and of groups in which layers are told.
    runner: Callable[[int, int | None], PagedRunner] = lambda num_blocks, layer_groups: PagedRunner(
        num_blocks, layer_groups=layer_groups
    )


async def start_node(
    fabric: LoopbackFabric,
    role: Role,
    transfer: TransferConfig,
    *,
    num_blocks: int = 32,
    worker_id: str = "",
    kind: NodeKind = NodeKind(),
) -> Node:
    identity = WorkerIdentity(worker_id or f"{role}-0", new_incarnation())
    runner = kind.runner(num_blocks, transfer.layer_groups)
    loop = asyncio.get_running_loop()

    def say(outcome: StepOutcome) -> None:
        loop.call_soon_threadsafe(service.on_outcome, outcome)

    engine = kind.engine(
        make_scheduler(
            num_blocks,
            runner.block_size,
            max_tokens=max(32, kind.chunk),
            chunk=kind.chunk,
            expected_output=kind.expected_output,
        ),
        StepExecution(runner, runner.checksums if transfer.checksum else None),
        say,
        recorder=PlanRecorder(64),
    )
    transport = kind.transport(fabric, identity.incarnation)
    area = ProbeArea(
        torch.from_numpy(runner.spare_bytes), runner.layout.num_bytes, identity.incarnation
    )
    allocation = runner.allocation
    metadata = transport.register(allocation.ctypes.data, allocation.nbytes, "cpu")
    receiver = kind.receiver(transport, runner.layout, runner.checksums, area=area)
    fingerprint = runner.layout.fingerprint()
    facts = WorkerFacts(role, fingerprint, metadata, num_blocks, runner.layout.block_bytes)
    peers = Peers(identity, fingerprint, TOKEN, transfer, max_idle=kind.max_idle)
    service = kind.service(
        WorkerParts(engine, receiver, peers, facts),
        transfer,
        absence_s=kind.absence_s,
        stalled_after_s=kind.stalled_after_s,
    )
    receiver.start()
    engine.start()
    server = await start_server(
        token=TOKEN,
        host="127.0.0.1",
        register=lambda server: add_worker_service(server, kind.calls(service)),
    )
    peers.address = server.address
    client = WorkerClient(peers.me, TOKEN)
    return Node(role, service, runner, engine, receiver, server, client)


@asynccontextmanager
async def worker_pair(
    transfer: TransferConfig | None = None,
    *,
    max_attempts: int = 1,
    timeout_s: float = 20.0,
    num_blocks: int = 32,
    prefill_kind: NodeKind = NodeKind(),
    decode_kind: NodeKind = NodeKind(),
    introduced: bool = True,
) -> AsyncIterator[Pair]:
    """One attempt a request unless told otherwise: a failure is seen, not recovered from.

    The two have met already unless told otherwise: faults then strike KV, not the preflight.
    """
    transfer = transfer or TransferConfig(transport="loopback", read_timeout_s=1.0)
    fabric = LoopbackFabric()
    prefill = await start_node(
        fabric, "prefill", transfer, num_blocks=num_blocks, kind=prefill_kind
    )
    decode = await start_node(fabric, "decode", transfer, num_blocks=num_blocks, kind=decode_kind)
    watcher = FleetWatcher(StaticLocator("127.0.0.1:1"), TOKEN)  # told by `show`, never run
    links = WorkerLinks(new_incarnation(), TOKEN)
    recovery = RecoveryConfig(max_attempts=max_attempts, worker_wait_s=5.0)
    journeys = Journeys(watcher, links, recovery, timeout_s)
    pair = Pair(fabric, prefill, decode, watcher, links, journeys, transfer, [prefill, decode])
    try:
        pair.show(prefill, decode)
        await pair.until(lambda: all(links.usable(n.identity) for n in (prefill, decode)))
        if introduced:
            await decode.service.parts.peers.connect(prefill.peer, decode.receiver)
        yield pair
    finally:
        await links.close()
        for node in pair.nodes:
            await node.stop()
