"""The one place that chooses an implementation of each kernel for a device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from segue.kernels import paged_attention, rms_norm, rope
from segue.kernels.paged_attention import AttentionPlan, ContextSlice, GenerationGroup
from segue.kernels.paged_cache import LayerCache
from segue.kernels.rope import Rotation


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One implementation of each kernel; the torch reference says what each must compute."""

    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    rotate: Callable[[torch.Tensor, Rotation], torch.Tensor]
    store: Callable[[LayerCache, torch.Tensor, AttentionPlan], None]
    context_attention: Callable[[torch.Tensor, LayerCache, ContextSlice, int], torch.Tensor]
    generation_attention: Callable[[torch.Tensor, LayerCache, GenerationGroup, int], torch.Tensor]


REFERENCE = KernelSet(
    rms_norm=rms_norm.rms_norm,
    rotate=rope.rotate,
    store=paged_attention.store,
    context_attention=paged_attention.context_attention,
    generation_attention=paged_attention.generation_attention,
)


def kernels_for(device: torch.device) -> KernelSet:
    """The kernels of `device`. Raises ValueError for a kind of device that has none."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"no kernels for device {device}")
    return REFERENCE
