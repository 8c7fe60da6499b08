"""Runs a model's steps on one device: owns its weights and its KV-cache, and knows no requests."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from segue.cluster.errors import ConfigurationError
from segue.kernels.dispatch import kernels_for
from segue.kernels.paged_cache import CacheShape, PagedCache
from segue.kernels.quantization import CODE_FORMATS, CodeFormat
from segue.workers.batch import PackedBatch
from segue.workers.block_copies import BlockCopier
from segue.workers.device_work import DeviceWork, open_device_work
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.models.layer_clock import LayerClock, group_ends, open_clock
from segue.workers.models.llama import Llama
from segue.workers.models.spec import ModelSpec, load_spec
from segue.workers.models.step import StepIndex
from segue.workers.models.weights import Placement, load_weights

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """What a device was given and may still be computing. `logits` are not to be read yet."""

    logits: torch.Tensor
    clock: LayerClock | None = None


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
        kv_cache_dtype: str = "auto",
        num_host_blocks: int = 0,
        num_spare_bytes: int = 0,
        dummy_seed: int = 0,
        layer_groups: int | None = 1,
        work: DeviceWork | None = None,
    ) -> None:
        """`num_spare_bytes`: allocated behind the blocks, and not used here.

        `layer_groups`: in how many the layers of a step are told of, if anybody wants to know.
        """
        self.spec: ModelSpec = load_spec(folder, load_format=load_format, dummy_seed=dummy_seed)
        self._group_ends = group_ends(self.spec.num_layers, layer_groups)
        self.device = torch.device(device)
        self._work = work or open_device_work(self.device)
        kernels = kernels_for(self.device)
        weights = load_weights(
            folder,
            self.spec,
            Placement(_torch_dtype(dtype), self.device, kernels.pack_weight),
            dummy_seed=dummy_seed if load_format == "dummy" else None,
        )
        self._model = Llama(self.spec, weights, kernels)
        self._shape = replace(_shape(self.spec, block_size, kv_cache_dtype), num_blocks=num_blocks)
        # On a CPU the pages of `empty` cost nothing until a block is first written.
        storage = _storage_dtype(self._shape, dtype)
        kv_bytes = math.prod(self._shape.dimensions) * storage.itemsize
        memory = torch.empty(kv_bytes + num_spare_bytes, dtype=torch.uint8, device=self.device)
        self.kv_cache: torch.Tensor = memory[:kv_bytes].view(storage).view(self._shape.dimensions)
        self.spare_bytes = memory[kv_bytes:]
        self.block_bytes = self.kv_cache[0].nbytes
        self._cache = PagedCache(self.kv_cache, self._shape)
        self._steps = StepIndex(
            self._shape, num_heads=self.spec.num_heads, vocab_size=self.spec.vocab_size
        )
        self.num_host_blocks = num_host_blocks
        self._copier = BlockCopier(self.kv_cache, num_host_blocks, self._work)

    def execute(
        self, batch: PackedBatch, on_layers: Callable[[int], None] | None = None
    ) -> torch.Tensor:
        """Logits (float32, on the CPU) of each slice with `samples` and then of each row.

        `on_layers` is told, at the end of each group of layers, for how many layers the step's
        keys and values are in the cache. When it returns, all of them are, also if no row
        samples. Raises ValueError for a batch with ids out of range; then nothing was computed.
        """
        return self.collect(self.launch(batch, on_layers))

    @torch.inference_mode()
    def launch(
        self, batch: PackedBatch, on_layers: Callable[[int], None] | None = None
    ) -> LaunchedStep:
        """Give the device a step; `collect` waits for its end. See `execute`."""
        step = self._steps.tensors(batch).to(self.device)
        if on_layers is None or not self._group_ends:
            return LaunchedStep(self._model.forward(step, self._cache))
        clock = open_clock(self.device, self._group_ends, on_layers)
        return LaunchedStep(self._model.forward(step, self._cache, clock), clock)

    @torch.inference_mode()
    def collect(self, step: LaunchedStep) -> torch.Tensor:
        """The logits, once everything of the step is done.

        Copying them is no such wait: of a step that samples nothing there is nothing to copy.
        """
        if step.clock is not None:
            step.clock.finish()
        self._work.finish()
        return step.logits.float().cpu()

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        """Carry out the operations in their order; when it returns, they are done."""
        self._copier.run(operations)


def _shape(spec: ModelSpec, block_size: int, kv_cache_dtype: str) -> CacheShape:
    """The shape of a cache of one block."""
    codes = None if kv_cache_dtype == "auto" else _code_format(kv_cache_dtype)
    try:
        return CacheShape(1, spec.num_layers, spec.num_kv_heads, block_size, spec.head_dim, codes)
    except ValueError as error:
        raise ConfigurationError(f"kv_cache_dtype: {error}", param="kv_cache_dtype") from error


def _storage_dtype(shape: CacheShape, dtype: str) -> torch.dtype:
    """Codes and scales lie in one tensor, so it is one of bytes."""
    return _torch_dtype(dtype) if shape.codes is None else torch.uint8


def _code_format(name: str) -> CodeFormat:
    if name not in CODE_FORMATS:
        known = ", ".join(("auto", *CODE_FORMATS))
        raise ConfigurationError(f"kv_cache_dtype {name!r} is not one of {known}")
    return CODE_FORMATS[name]


def _torch_dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype {name!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
