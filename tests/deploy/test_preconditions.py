"""What no restart would bring is told before anything is started."""

from typing import Any

import pytest

from segue.cluster.config.file import parse_config
from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError
from segue.deploy import preconditions
from segue.deploy.preconditions import check_machine, check_replicas
from segue.kvtransfer import nixl_transport


def config(gpus: float = 0, replicas: int = 1, **engine: Any) -> SegueConfig:
    pool = {"role": "both", "num_replicas": replicas, "engine": engine}
    return parse_config({"pools": {"all": pool | {"replica": {"num_gpus": gpus}}}})


def test_how_to_install_nixl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_machine(config())
    monkeypatch.setattr(nixl_transport, "PACKAGES", ("no_such_nixl",))
    with pytest.raises(ConfigurationError, match=r"not installed.* pip install 'segue\[nixl\]'"):
        check_machine(config())
    with pytest.raises(ConfigurationError, match=r"no_such_nixl.* pip install 'segue\[nixl\]'"):
        nixl_transport.load_nixl()


@pytest.mark.parametrize(
    ("gpus", "replicas", "found", "told"),
    [
        (1, 2, 2, ""),
        (0.5, 3, 2, ""),
        (0, 9, 0, ""),
        (1, 0, 0, ""),
        (1, 3, 2, "need 3 GPUs"),
        (0.5, 3, 1, "need 1.5 GPUs"),
        (1, 1, 0, "finds no CUDA device"),
    ],
)
def test_the_gpus_are_there(
    monkeypatch: pytest.MonkeyPatch, gpus: float, replicas: int, found: int, told: str
) -> None:
    monkeypatch.setattr(preconditions, "num_cuda_devices", lambda: found)
    if not told:
        check_machine(config(gpus, replicas))
        return
    with pytest.raises(ConfigurationError, match=told):
        check_machine(config(gpus, replicas))


def test_a_gpu_is_asked_of_ray() -> None:
    config(0.5, device="cuda")
    with pytest.raises(ConfigurationError, match=r"pools\.all: engine\.device .*num_gpus is 0"):
        config(device="cuda")


def test_somebody_serves() -> None:
    check_replicas(config())
    with pytest.raises(ConfigurationError, match="nobody would ever serve"):
        check_replicas(config(replicas=0))
