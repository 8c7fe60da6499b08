"""A real worker whose model, once told to by a file, never comes back from a step."""

import os
import threading
from pathlib import Path

import torch

from segue.kvtransfer.layout import KVLayout
from segue.workers.batch import PackedBatch
from segue.workers.model_runner import ModelRunner
from segue.workers.models.spec import ModelSpec
from segue.workers.process import WorkerProcess
from segue.workers.step_execution import LayerNews

FOLDER_VARIABLE = "SEGUE_TEST_WEDGE_FOLDER"
ENTRY = "wedging_worker:WedgingWorker"


class WedgingWorker(WorkerProcess):
    """The file is named after the role, in the folder that the environment names; who takes it
    away is wedged, so that one life is."""

    def _load(self) -> tuple[ModelSpec, ModelRunner, KVLayout]:
        spec, runner, layout = super()._load()
        file = Path(os.environ[FOLDER_VARIABLE]) / self.settings.role
        execute = runner.execute

        def execute_or_wedge(
            batch: PackedBatch, on_layers: LayerNews | None = None
        ) -> torch.Tensor:
            try:
                file.unlink()
            except FileNotFoundError:
                return execute(batch, on_layers)
            threading.Event().wait()
            raise AssertionError("nobody sets it")

        runner.execute = execute_or_wedge  # type: ignore[method-assign]
        return spec, runner, layout
