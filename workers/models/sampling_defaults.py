"""How a model's makers want it to be sampled, where a request does not say: generation_config.json.

As vLLM reads it: temperature, top_p, top_k, min_p and repetition_penalty; and do_sample: false is
greedy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segue.cluster.errors import ConfigurationError
from segue.workers.models.json_file import read_json

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # known, and not applied yet


def load_sampling_defaults(folder: Path) -> SamplingDefaults:
    """Raises ConfigurationError that names the key whose value cannot be."""
    source = folder / GENERATION_CONFIG
    values = read_json(source) if source.exists() else {}
    top_k = _number(values, source, "top_k", 0, -1, 2**31)
    defaults = SamplingDefaults(
        temperature=_number(values, source, "temperature", 1.0, 0, 2),
        top_p=_number(values, source, "top_p", 1.0, 0, 1) or 1.0,
        top_k=max(int(top_k), 0),
        min_p=_number(values, source, "min_p", 0.0, 0, 1),
        repetition_penalty=_number(values, source, "repetition_penalty", 1.0, 0, 100),
    )
    if values.get("do_sample") is False:
        return SamplingDefaults(0.0, repetition_penalty=defaults.repetition_penalty)
    return defaults


def _number(
    values: dict[str, Any], source: Path, key: str, default: float, low: float, high: float
) -> float:
    """A null counts as absent."""
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigurationError(f"{source}: {key} must be from {low} to {high}: {value!r}")
    return float(value)
