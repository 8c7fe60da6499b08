"""Puts one worker together and runs it: model, engine thread, transfer thread, event loop.

Knows nothing of who started it. `start` returns when the worker is registered and serving.
"""

import asyncio
import gc
import logging
import os
import threading
from pathlib import Path

import torch

from segue.cluster.config.engine import EngineConfig
from segue.cluster.errors import ConfigurationError, InternalError
from segue.cluster.fleet import Registration
from segue.cluster.launcher import WorkerSettings, open_locator
from segue.cluster.rpc.heartbeat import HeartbeatClient
from segue.cluster.rpc.security import load_security
from segue.cluster.rpc.server import RpcServer, start_server
from segue.cluster.rpc.worker_service import add_worker_service
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.kvtransfer.probe_area import area_bytes
from segue.kvtransfer.receiver import Receiver
from segue.kvtransfer.transport import Transport
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.device import device_of
from segue.workers.drain import Drain
from segue.workers.engine import Engine
from segue.workers.kv_identity import (
    ITEM_BYTES,
    fingerprint,
    key_scope,
    kv_block_bytes,
    kv_layout,
)
from segue.workers.kv_region import announced_checksums, open_region
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.kvcache.sizing import (
    BlockSize,
    check_longest_sequence,
    host_slots,
    num_kv_blocks,
    share_of,
)
from segue.workers.model_runner import ModelRunner
from segue.workers.models.computing_dtype import computing_dtype
from segue.workers.models.spec import ModelSpec, load_spec
from segue.workers.parts import WorkerFacts, WorkerParts
from segue.workers.peers import Peers
from segue.workers.plan_recorder import PlanRecorder
from segue.workers.scheduler.chunking import ChunkingPolicy
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.policies import capacity_policy
from segue.workers.scheduler.scheduler import Scheduler, SchedulerSettings
from segue.workers.service import WorkerService
from segue.workers.step_execution import StepExecution
from segue.workers.step_outcome import StepOutcome

logger = logging.getLogger(__name__)

STOP_SECONDS = 10.0


class WorkerProcess:
    """`settings_json`: a WorkerSettings. `transport` replaces NIXL in tests of one process."""

    def __init__(self, settings_json: str, transport: Transport | None = None) -> None:
        self.settings = WorkerSettings.model_validate_json(settings_json)
        self._security = load_security(self.settings.control)
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._serving = threading.Event()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name="loop", daemon=True)
        self.service: WorkerService | None = None
        self._drained = False
        self.address = ""

    def start(self) -> None:
        """Load, listen, register. Raises what went wrong; nothing is left running then."""
        self._thread.start()
        self._serving.wait()
        if isinstance(self._error, ConfigurationError):
            raise self._error
        if self._error is not None:
            raise InternalError(f"the worker could not start: {self._error}") from self._error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)

    def drain(self, reason: str) -> None:
        """Leave once everything is done; the process ends then."""
        if self.service is None:  # nobody has heard of it yet
            os._exit(0)
        self._loop.call_soon_threadsafe(self.service.draining.begin, reason)

    # -- the event loop's thread -------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
            if self._serving.is_set():  # it failed later: a worker without its loop is no worker
                logger.exception("the worker's loop ended")
                os._exit(1)
        finally:
            self._serving.set()
            self._loop.close()
        if self._drained:
            logger.info("drained")
            os._exit(0)  # whoever hosts this worker has nothing else to do here

    async def _serve(self) -> None:
        settings = self.settings
        spec, runner, layout = await asyncio.to_thread(self._load)
        engine = self._engine(spec, runner, layout)
        server: RpcServer | None = None
        receiver: Receiver | None = None
        try:
            transport = self._transport or _open_transport(settings, layout)
            receiver, metadata = open_region(runner, layout, transport, settings.incarnation)
            facts = WorkerFacts(
                settings.role,
                fingerprint(settings.model, spec, layout),
                metadata,
                layout.num_blocks,
                layout.block_bytes,
            )
            peers = Peers(
                settings.identity,
                facts.fingerprint,
                settings.cluster_token,
                settings.transfer,
                security=self._security,
            )
            service = WorkerService(
                WorkerParts(engine, receiver, peers, facts),
                settings.transfer,
                stalled_after_s=settings.control.stalled_after_s,
            )
            self.service = service
            receiver.start()
            engine.start()
            server = await self._listen(service)
            gc.collect()
            gc.freeze()  # what was loaded stays; collections look at new objects only
            await self._serve_until_stopped(service)
        finally:
            if self.service is not None:
                await self.service.close()
            if server is not None:
                await server.stop(0.5)
            if engine.is_alive:
                engine.stop()
            if receiver is not None and self.service is not None:
                receiver.stop()

    async def _listen(self, service: WorkerService) -> RpcServer:
        """Open the door. Tests of faults stand in it: they override this, and advertise another."""
        settings = self.settings
        server = await start_server(
            token=settings.cluster_token,
            host=settings.host or "127.0.0.1",
            register=lambda server: add_worker_service(server, service),
            security=self._security,
        )
        self.address = service.parts.peers.address = server.address
        return server

    async def _serve_until_stopped(self, service: WorkerService) -> None:
        settings, parts = self.settings, service.parts
        heartbeat = HeartbeatClient(
            open_locator(settings.locator),
            settings.cluster_token,
            Registration(
                parts.peers.me,
                settings.pool,
                settings.role,
                parts.facts.fingerprint,
                os.getpid(),
            ),
            service.beat,
            _leave_at_once,
            on_sources=service.on_sources,
            security=self._security,
        )
        beating = asyncio.create_task(heartbeat.run(), name="heartbeat")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        leaving = asyncio.create_task(self._leave(service.draining, heartbeat), name="leave")
        parts.lag.start()
        try:
            await heartbeat.wait_registered(settings.control.start_timeout_s)
            self._serving.set()
            await asyncio.wait({beating, stopping, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            self._drained = leaving.done() and not stopping.done()
        finally:
            parts.lag.stop()
            beating.cancel()
            stopping.cancel()
            leaving.cancel()
            await asyncio.gather(beating, stopping, leaving, return_exceptions=True)

    async def _leave(self, draining: Drain, heartbeat: HeartbeatClient) -> None:
        await draining.begun.wait()
        heartbeat.beat_now()
        await draining.finish(self.settings.control.drain_timeout_s)

    # -- parts -------------------------------------------------------------------------------

    def _load(self) -> tuple[ModelSpec, ModelRunner, KVLayout]:
        engine = self.settings.engine
        torch.set_num_threads(engine.torch_threads)
        folder = Path(self.settings.model_folder)
        device = device_of(engine)
        spec = load_spec(folder, load_format=self.settings.model.load_format)
        dtype = computing_dtype(self.settings.model.dtype, spec, on_cpu=device == "cpu")
        model = self.settings.model.model_copy(update={"dtype": dtype})
        settings = self.settings = self.settings.model_copy(update={"model": model})
        block_bytes = kv_block_bytes(
            spec, settings.model.dtype, engine.block_size, engine.kv_cache_dtype
        )
        block = BlockSize(engine.block_size, block_bytes)
        weight_bytes = spec.num_parameters * ITEM_BYTES[settings.model.dtype]
        budget = _kv_budget_bytes(engine, device, weight_bytes)
        num_blocks = num_kv_blocks(engine, block, budget)
        if (longest := settings.model.max_model_len) is not None:
            check_longest_sequence(longest, engine.block_size, num_blocks, block_bytes)
        runner = ModelRunner(
            folder,
            load_format=settings.model.load_format,
            dtype=settings.model.dtype,
            device=device,
            num_blocks=num_blocks,
            block_size=engine.block_size,
            kv_cache_dtype=engine.kv_cache_dtype,
            num_host_blocks=host_slots(block, engine.host_cache_bytes),
            num_spare_bytes=area_bytes(settings.transfer.preflight_bytes),
            layer_groups=settings.transfer.layer_groups,
        )
        layout = kv_layout(settings.model, engine, spec, runner.kv_cache.shape[0])
        warm_up = SequenceSlice([0] * min(engine.block_size, 2), 0, [0], True)
        runner.execute(PackedBatch((warm_up,), 1))
        return spec, runner, layout

    def _engine(self, spec: ModelSpec, runner: ModelRunner, layout: KVLayout) -> Engine:
        config = self.settings.engine
        scope = key_scope(self.settings.model, spec, layout)
        reuse = ReusePolicy(
            config.enable_prefix_caching,
            config.enable_partial_reuse,
            config.copy_on_partial_reuse,
            runner.num_host_blocks,
            config.offload_min_priority,
            config.kv_event_capacity,
        )
        cache = KVCache(BlockPool(layout.num_blocks), config.block_size, scope, reuse)
        budget = StepBudget(
            config.token_budget,
            config.chunk_size,
            config.block_size,
            ChunkingPolicy(config.context_chunking_policy),
        )
        settings = SchedulerSettings(
            config.max_num_seqs,
            capacity_policy(
                config.capacity_scheduler_policy,
                config.expected_output,
                self.settings.usual_answer,
            ),
            config.priority_ageing_s,
            config.enable_delay_for_reuse,
        )
        return Engine(
            Scheduler(cache, budget, settings),
            StepExecution(runner, announced_checksums(runner, layout, self.settings.transfer)),
            self._engine_says,
            recorder=PlanRecorder(config.trace_steps),
        )

    def _engine_says(self, outcome: StepOutcome) -> None:
        """In the engine thread: one hop to the event loop for everything a step has to say."""
        service = self.service
        assert service is not None
        self._loop.call_soon_threadsafe(service.on_outcome, outcome)


def _kv_budget_bytes(engine: EngineConfig, device: str, weight_bytes: int) -> int:
    """Asked before the weights are loaded, so that the KV-cache leaves room for them."""
    if device == "cpu":
        return engine.kv_cache_bytes
    free, _ = torch.cuda.mem_get_info()
    return share_of(max(0, free - weight_bytes), engine.free_gpu_memory_fraction)


def _open_transport(settings: WorkerSettings, layout: KVLayout) -> Transport:
    if settings.transfer.transport == "loopback":
        raise ConfigurationError(
            "transfer.transport: loopback works within one process only", param="transfer"
        )
    return NixlTransport(settings.incarnation, unit_bytes=layout.block_bytes)


def _leave_at_once(reason: str) -> None:
    logger.error("leaving: %s", reason)
    os._exit(0)
