"""The example configurations: each loads, says how it is run, and leaves nothing to guess."""

from pathlib import Path

import pytest

import segue.deploy.launch
from segue.cluster.config.file import load_config

EXAMPLES = sorted((Path(segue.deploy.launch.__file__).parent / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_loads_and_tells_its_command(file: Path) -> None:
    config = load_config(file)
    assert config.model.max_model_len is not None
    assert {"prefill", "decode"} == {pool.role for pool in config.pools.values()}
    command = next(line for line in file.read_text().splitlines() if "segue serve" in line)
    assert command.startswith("#") and command.endswith(f"deploy/examples/{file.name}")


def test_the_examples_differ_in_what_they_show() -> None:
    configs = {file.stem: load_config(file) for file in EXAMPLES}
    assert configs["one_machine"].gateway.host == "127.0.0.1"
    replicas = {pool.num_replicas for pool in configs["two_by_two"].pools.values()}
    assert replicas == {2} and configs["two_by_two"].gateway.api_keys_file
    for name, pool in configs["ray_cluster"].pools.items():
        assert pool.replica.resources == {name: 1} and pool.replica.num_gpus == 1
