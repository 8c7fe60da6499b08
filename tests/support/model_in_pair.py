"""A small real model, with weights drawn by a seed, as the runner of a node of a worker pair."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tiny_model import write_tiny_llama
from worker_pair import GATE_SECONDS, PROBE_BYTES, PagedRunner

from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.model import ModelConfig
from segue.kvtransfer.checksum import memory_view
from segue.kvtransfer.probe_area import area_bytes
from segue.workers.batch import PackedBatch
from segue.workers.kv_identity import kv_layout
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.model_runner import ModelRunner
from segue.workers.step_execution import LayerNews

NUM_LAYERS = 6


class ModelInPair(PagedRunner):
    block_size = 16

    def __init__(
        self, folder: Path, kv_cache_dtype: str, num_blocks: int, layer_groups: int | None
    ) -> None:
        self.model = ModelRunner(
            folder,
            load_format="dummy",
            dtype="float32",
            device="cpu",
            num_blocks=num_blocks,
            block_size=self.block_size,
            kv_cache_dtype=kv_cache_dtype,
            num_spare_bytes=area_bytes(PROBE_BYTES),
            layer_groups=layer_groups,
        )
        engine = EngineConfig.model_validate(
            {"kv_cache_dtype": kv_cache_dtype, "block_size": self.block_size}
        )
        self.layout = kv_layout(ModelConfig(dtype="float32"), engine, self.model.spec, num_blocks)
        self.spare_bytes = self.model.spare_bytes.numpy()
        num_bytes = self.layout.num_bytes + self.spare_bytes.nbytes
        self.allocation = np.frombuffer(
            memory_view(self.model.kv_cache.data_ptr(), num_bytes), np.uint8
        )
        self.memory = self.allocation[: self.layout.num_bytes]  # type: ignore[assignment]
        self.told = []
        self.gate = threading.Event()
        self.gate.set()

    def execute(self, batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
        assert self.gate.wait(GATE_SECONDS), "a test forgot to open the gate"
        return self.model.execute(batch, None if on_layers is None else self._hearing(on_layers))

    def _hearing(self, on_layers: LayerNews) -> LayerNews:
        def hear(num_layers: int) -> None:
            self.told.append(num_layers)
            on_layers(num_layers)

        return hear

    def copy_blocks(self, operations: "list[BlockOperation]") -> None:  # type: ignore[override]
        self.model.copy_blocks(operations)


def models_in_pair(folder: Path, kv_cache_dtype: str) -> Callable[[int, int | None], PagedRunner]:
    """For NodeKind; all of them have the same weights."""
    write_tiny_llama(
        folder, num_hidden_layers=NUM_LAYERS, vocab_size=96, max_position_embeddings=256
    )
    return lambda num_blocks, layer_groups: ModelInPair(
        folder, kv_cache_dtype, num_blocks, layer_groups
    )
