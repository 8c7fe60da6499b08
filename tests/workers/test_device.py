"""A worker computes where it was told, or says why it can not."""

import pytest
import torch

from segue.cluster.config.engine import EngineConfig
from segue.cluster.errors import ConfigurationError
from segue.workers.device import device_of, num_cuda_devices


def test_a_cpu_is_always_there() -> None:
    assert device_of(EngineConfig(device="cpu")) == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error_of_the_configuration() -> None:
    assert device_of(EngineConfig(device="auto")) == "cpu"
    assert num_cuda_devices() == 0
    with pytest.raises(ConfigurationError, match=r"device is cuda, but PyTorch .* no CUDA device"):
        device_of(EngineConfig(device="cuda"))
