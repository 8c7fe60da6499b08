"""Reads the configuration from one YAML file, and explains what is wrong with it.

Unknown keys are refused with the nearest known name.
"""

import difflib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError
from segue.cluster.yaml_file import read_yaml


def load_config(path: str | Path | None) -> SegueConfig:
    """Read `path`, or give the defaults. Raises ConfigurationError that names each wrong key."""
    if path is None:
        return SegueConfig()
    data = read_yaml(path)
    return parse_config({} if data is None else data, source=str(path))


def parse_config(data: Any, source: str = "configuration") -> SegueConfig:
    if not isinstance(data, dict):
        raise ConfigurationError(f"{source}: expected a mapping at the top level")
    try:
        return SegueConfig.model_validate(data)
    except ValidationError as error:
        lines = [_explain(SegueConfig, dict(item)) for item in error.errors()]
        raise ConfigurationError(f"{source}:\n  " + "\n  ".join(lines)) from error


def _explain(root: type[BaseModel], item: dict[str, Any]) -> str:
    location: tuple[str | int, ...] = item["loc"]
    where = ".".join(str(part) for part in location) or "(top level)"
    if item["type"] != "extra_forbidden":
        return f"{where}: {item['msg'].removeprefix('Value error, ')}"
    known = _fields_at(root, location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
    return f"{where}: unknown key; {hint}"


def _fields_at(root: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Names the keys of the section at `location`, which may pass through names of pools."""
    here: Any = root
    for part in location:
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = here.model_fields[str(part)].annotation
        else:
            here = get_args(here)[-1]  # the values of a mapping
    return list(here.model_fields)
