"""Reads a YAML file, in which no key may be given twice."""

from pathlib import Path
from typing import Any

import yaml

from segue.cluster.errors import ConfigurationError


def read_yaml(path: str | Path) -> Any:
    """Raises ConfigurationError if it cannot be read or is not YAML."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise ConfigurationError(f"{path} is not valid YAML: {error}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a mapping that gives a key twice; YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' is given twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
