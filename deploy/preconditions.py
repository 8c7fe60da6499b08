"""What is wrong with a deployment that can be told before anything of it is started."""

from pathlib import Path

from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError
from segue.kvtransfer.nixl_transport import check_nixl_installed
from segue.router.generation import ModelCard
from segue.router.text_model import TextSource, load_text_model
from segue.workers.device import no_cuda_device, num_cuda_devices


def check_text(folder: Path, card: ModelCard) -> None:
    """Raises ConfigurationError if the model's tokenizer or chat template can not be used."""
    load_text_model(TextSource(folder, card))


def check_replicas(config: SegueConfig) -> None:
    """Raises ConfigurationError if no worker would ever be started."""
    if not any(pool.num_replicas for pool in config.pools.values()):
        raise ConfigurationError("pools: num_replicas is 0 everywhere, so nobody would ever serve")


def check_machine(config: SegueConfig) -> None:
    """Raises ConfigurationError if workers on this machine lack what no restart will bring."""
    check_nixl_installed()
    wanted = {
        name: pool.num_replicas * pool.replica.num_gpus
        for name, pool in config.pools.items()
        if pool.num_replicas and pool.replica.num_gpus
    }
    found = num_cuda_devices()
    if wanted and not found:
        raise ConfigurationError(f"pools.{min(wanted)}.replica.num_gpus: {no_cuda_device()}")
    if (total := sum(wanted.values())) > found:
        raise ConfigurationError(
            f"pools: their workers need {total:g} GPUs (num_replicas times replica.num_gpus), and "
            f"this machine has {found}"
        )
