"""The safetensors files of a model folder: which they are, and whether they are whole."""

import json
import struct
from pathlib import Path
from typing import Any

from segue.cluster.errors import ConfigurationError
from segue.workers.models.json_file import read_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_HEADER_BYTES = 100 * 10**6  # the format's own limit


def weight_files(folder: Path) -> list[Path]:
    """In the order of their names; empty if there are none."""
    index = folder / INDEX_FILE
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(n, str) for n in shards.values()):
            raise ConfigurationError(f"{index}: weight_map must map tensors to files")
        return [folder / name for name in sorted(set(shards.values()))]
    single = folder / SINGLE_FILE
    return [single] if single.exists() else []


def check_weight_file(path: Path) -> None:
    """Raises ConfigurationError unless the file is as long as its header says.

    Half a download is the usual reason; found out when a worker loads it, it would be started again
    and again.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > min(size - 8, MAX_HEADER_BYTES):
                raise ConfigurationError(f"{path} is truncated, or no safetensors file")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name[:2] != "__"]
    except ConfigurationError:
        raise
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    except (struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ConfigurationError(f"{path} is truncated, or no safetensors file") from error
    wanted = 8 + header_bytes + max(ends, default=0)
    if size != wanted:
        raise ConfigurationError(f"{path} has {size} bytes, its header tells of {wanted}")
