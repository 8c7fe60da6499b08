"""Small models written to disk: a GGUF file and, through transformers, Hugging Face folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

LAYERS, HIDDEN, HEADS, KV_HEADS, INNER = 2, 64, 4, 2, 96
BASE_TOKENS = ["<|start|>", "<|end|>"]


def write_gguf(path: Path, **changes: Any) -> Path:
    """A random Llama of byte-level tokens.

    `changes`: "arch", "pre" and "seed"; "arrays" maps names to (array, type) to use or add;
    "metadata" maps more keys to numbers or truths; "merges" may leave out what they say.
    """
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324))]
    tokens = [*BASE_TOKENS, *alphabet, "Ġh", "he", "Ġhe"]
    writer = gguf.GGUFWriter(path, changes.get("arch", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(BASE_TOKENS) + [1] * (len(tokens) - len(BASE_TOKENS)))
    if changes.get("merges", True):
        writer.add_token_merges(["h e", "Ġ h", "Ġ he"])
    for key, value in changes.get("metadata", {}).items():
        add = {bool: writer.add_bool, float: writer.add_float32, int: writer.add_uint32}
        add.get(type(value), writer.add_string)(key, value)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0].content }}")
    random = np.random.default_rng(changes.get("seed", 0))
    arrays: dict[str, tuple[Any, gguf.GGMLQuantizationType]] = {}
    for name, shape in _shapes(len(tokens)).items():
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        arrays[name] = random.standard_normal(shape).astype(np.float32) * 0.1, kind
    for name, (array, kind) in (arrays | changes.get("arrays", {})).items():
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    key = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (key, HIDDEN),
            "attn_v": (key, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


@pytest.fixture
def gguf_writer() -> Callable[..., Path]:
    return write_gguf


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")
