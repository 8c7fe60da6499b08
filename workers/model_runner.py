"""Runs a model's steps on one device: owns its weights and its KV-cache, and knows no requests."""

from dataclasses import replace
from pathlib import Path

import torch

from segue.cluster.errors import ConfigurationError
from segue.kernels.dispatch import kernels_for
from segue.kernels.paged_cache import CacheShape, PagedCache
from segue.workers.batch import PackedBatch
from segue.workers.models.llama import Llama
from segue.workers.models.spec import ModelSpec, load_spec
from segue.workers.models.step import step_tensors
from segue.workers.models.weights import Placement, load_weights

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class ModelRunner:
    """One model on one device. `kv_cache` may be read and written by transfers between steps."""

    def __init__(
        self,
        folder: Path,
        *,
        load_format: str,
        dtype: str,
        device: str,
        num_blocks: int,
        block_size: int,
        dummy_seed: int = 0,
    ) -> None:
        self.spec: ModelSpec = load_spec(folder, load_format=load_format, dummy_seed=dummy_seed)
        self.device = torch.device(device)
        kernels = kernels_for(self.device)
        weights = load_weights(
            folder,
            self.spec,
            Placement(_torch_dtype(dtype), self.device, kernels.pack_weight),
            dummy_seed=dummy_seed if load_format == "dummy" else None,
        )
        self._model = Llama(self.spec, weights, kernels)
        self._shape = replace(_shape(self.spec, block_size), num_blocks=num_blocks)
        # On a CPU the pages of `empty` cost nothing until a block is first written.
        self.kv_cache: torch.Tensor = torch.empty(
            self._shape.dimensions, dtype=_torch_dtype(dtype), device=self.device
        )
        self.block_bytes = self.kv_cache[0].nbytes
        self._cache = PagedCache(self.kv_cache)

    @torch.inference_mode()
    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """Logits (float32, on the CPU) of each slice with `samples`, in the order of the batch.

        Raises ValueError for a batch with ids out of range; then nothing was computed.
        """
        step = step_tensors(
            batch,
            self._shape,
            num_heads=self.spec.num_heads,
            vocab_size=self.spec.vocab_size,
        )
        return self._model.forward(step.to(self.device), self._cache).float().cpu()


def _shape(spec: ModelSpec, block_size: int) -> CacheShape:
    """The shape of a cache of one block."""
    return CacheShape(1, spec.num_layers, spec.num_kv_heads, block_size, spec.head_dim)


def _torch_dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype {name!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
