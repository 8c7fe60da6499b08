"""A Llama so small that its weights are drawn by a seed wherever it is needed."""

import json
from pathlib import Path

TINY_LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def write_tiny_llama(folder: Path, **changes: int) -> Path:
    """Make `folder` a model of it, for `load_format: dummy`; returns the folder."""
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA | changes))
    return folder
