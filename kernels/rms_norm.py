"""Root-mean-square normalisation: the torch reference, which is also the CPU kernel."""

import torch
from torch.nn import functional


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Scale each row of `hidden` (..., size) to unit mean square, then by `weight` (size,)."""
    if hidden.dtype == torch.float32:
        return functional.rms_norm(hidden, weight.shape, weight, epsilon)
    # As models in half precision were trained: normalise in float32, round, then scale.
    wide = functional.rms_norm(hidden.float(), weight.shape, None, epsilon)
    return weight * wide.to(hidden.dtype)
