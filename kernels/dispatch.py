"""The one place that chooses an implementation of each kernel for a device."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from segue.kernels import linear, paged_attention, rms_norm, rope
from segue.kernels.paged_attention import AttentionPlan, ContextSlice, GenerationGroup
from segue.kernels.paged_cache import LayerCache
from segue.kernels.rope import Rotation


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One implementation of each kernel; the torch reference says what each must compute."""

    pack_weight: Callable[[torch.Tensor], torch.Tensor]
    linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    rotate: Callable[[torch.Tensor, Rotation], None]
    store: Callable[[LayerCache, torch.Tensor, AttentionPlan], None]
    context_attention: Callable[[torch.Tensor, LayerCache, ContextSlice, int], torch.Tensor]
    generation_attention: Callable[[torch.Tensor, LayerCache, GenerationGroup, int], torch.Tensor]


REFERENCE = KernelSet(
    pack_weight=linear.pack_weight,
    linear=linear.linear,
    rms_norm=rms_norm.rms_norm,
    rotate=rope.rotate,
    store=paged_attention.store,
    context_attention=paged_attention.context_attention,
    generation_attention=paged_attention.generation_attention,
)

CPU = replace(REFERENCE, pack_weight=linear.pack_weight_cpu, linear=linear.linear_cpu)
_BY_DEVICE = {"cpu": CPU, "cuda": REFERENCE}


def kernels_for(device: torch.device) -> KernelSet:
    """The kernels of `device`. Raises ValueError for a kind of device that has none."""
    if device.type not in _BY_DEVICE:
        raise ValueError(f"no kernels for device {device}")
    return _BY_DEVICE[device.type]
