"""A real worker whose transport, steps and calls can go wrong on demand; an entry of launchers.

It advertises the address of the proxy (network.py) that stands before it, if there is one.
"""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from fault_plan import FOLDER_VARIABLE, PlanFile, Sighting, report_sighting
from faulty_calls import FaultyCalls
from faulty_transport import FaultyTransport

from segue.cluster.identity import WorkerIdentity
from segue.cluster.launcher import WorkerSettings
from segue.cluster.rpc.server import RpcServer, start_server
from segue.cluster.rpc.worker_service import add_worker_service
from segue.cluster.worker_api import WorkerApi
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.nixl_transport import NixlTransport
from segue.workers.batch import PackedBatch
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.model_runner import ModelRunner
from segue.workers.models.spec import ModelSpec
from segue.workers.process import WorkerProcess
from segue.workers.service import WorkerService
from segue.workers.step_execution import LayerNews

SPOIL_POLL_SECONDS = 0.02


class FaultyWorker(WorkerProcess):
    """The file `<worker id>.advertised` in the folder holds its proxy's address."""

    def __init__(self, settings_json: str) -> None:
        settings = WorkerSettings.model_validate_json(settings_json)
        self._folder = Path(os.environ[FOLDER_VARIABLE])
        self._plan = PlanFile(self._folder, settings.worker_id)
        transport = FaultyTransport(NixlTransport(settings.incarnation), self._plan.read)
        super().__init__(settings_json, transport)

    def _load(self) -> tuple[ModelSpec, ModelRunner, KVLayout]:
        spec, runner, layout = super()._load()
        execute = runner.execute

        def execute_slowly(batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
            time.sleep(self._plan.read().step_s)
            return execute(batch, on_layers)

        runner.execute = execute_slowly  # type: ignore[method-assign]
        self._runner = runner
        return spec, runner, layout

    async def _listen(self, service: WorkerService) -> RpcServer:
        calls = FaultyCalls(service, self._plan.read)
        server = await start_server(
            token=self.settings.cluster_token,
            host="127.0.0.1",
            register=lambda server: add_worker_service(server, cast(WorkerApi, calls)),
        )
        identity: WorkerIdentity = self.settings.identity
        seen = Sighting(identity.incarnation, os.getpid(), server.address)

        def report() -> None:
            report_sighting(self._folder, identity, replace(seen, held=tuple(calls.held)))

        calls.on_held = report
        report()
        advertised = self._folder / f"{identity.worker_id}.advertised"
        self.address = advertised.read_text() if advertised.exists() else server.address
        service.parts.peers.address = self.address
        self._spoiling = asyncio.create_task(self._spoil(service), name="spoil")
        return server

    async def _spoil(self, service: WorkerService) -> None:
        done = self._plan.read().spoil
        while True:
            await asyncio.sleep(SPOIL_POLL_SECONDS)
            wanted = self._plan.read().spoil
            if wanted != done:
                done = wanted
                service.parts.engine.post(lambda: self._spoil_leased(service))

    def _spoil_leased(self, service: WorkerService) -> None:
        """Damage what readers may read, as a stray write would."""
        pool = service.parts.engine.cache.pool
        memory = self._runner.kv_cache.view(torch.uint8).reshape(pool.num_blocks, -1)
        for block_id in range(pool.num_blocks):
            if pool.state(block_id) is BlockState.LEASED:
                memory[block_id, 0] ^= 0xFF
