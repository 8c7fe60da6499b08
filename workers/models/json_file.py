"""Reads the JSON files of a model folder; what is wrong with one is told in a line."""

import json
from pathlib import Path
from typing import Any

from segue.cluster.errors import ConfigurationError


def read_json(path: Path) -> dict[str, Any]:
    """Raises ConfigurationError if it cannot be read or is no JSON object."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: expected a JSON object")
    return data
