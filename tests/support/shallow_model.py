"""The bundled model with its first layers only: real weights, a twelfth of the work."""

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

NUM_LAYERS = 2


def write_shallow_model(whole: Path, folder: Path) -> Path:
    """Cut `whole` off behind its first layers. What it says is gibberish, but a function of every
    token and of all of its KV."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in whole.glob("*.json"):
        shutil.copy(path, folder)
    config = json.loads((whole / "config.json").read_text())
    config["num_hidden_layers"] = NUM_LAYERS
    (folder / "config.json").write_text(json.dumps(config))
    with safe_open(whole / "model.safetensors", "pt") as tensors:
        kept = {name: tensors.get_tensor(name) for name in tensors.keys() if _is_kept(name)}
    save_file(kept, folder / "model.safetensors")
    return folder


def _is_kept(name: str) -> bool:
    parts = name.split(".")
    return "layers" not in parts or int(parts[parts.index("layers") + 1]) < NUM_LAYERS
