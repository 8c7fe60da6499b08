"""What a configuration may say, but probably does not mean."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from segue.cluster.config.model import BUNDLED_MODEL
from segue.cluster.config.whole import SegueConfig


def config_warnings(config: SegueConfig) -> list[str]:
    """One line each. Paths are looked for on this machine."""
    found = [
        f"pools.{name}.num_replicas is 0: no worker of it will be started"
        for name, pool in config.pools.items()
        if not pool.num_replicas
    ]
    path = config.model.path
    if path != BUNDLED_MODEL and not Path(path).expanduser().exists():
        found.append(f"model.path: there is no {path} here")
    for key, file in _files(config.model_dump()):
        if not Path(file).exists():
            found.append(f"{key}: there is no {file} here")
    return found


def _files(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the configuration that names a file, with what it names."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _files(value, f"{prefix}{key}.")
        elif key.endswith("_file") and isinstance(value, str):
            yield prefix + key, value
