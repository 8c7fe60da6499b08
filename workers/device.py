"""Which device a worker computes on, and what is wrong where there is none of that kind."""

import torch

from segue.cluster.config.engine import EngineConfig
from segue.cluster.errors import ConfigurationError


def device_of(engine: EngineConfig) -> str:
    """Raises ConfigurationError if it is not there."""
    if engine.device == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda:0"
    if engine.device == "cuda":
        raise ConfigurationError(f"engine.device is cuda, but {no_cuda_device()}")
    return "cpu"


def num_cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def no_cuda_device() -> str:
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return f"PyTorch {torch.version.__version__} (built {built}) finds no CUDA device here"
