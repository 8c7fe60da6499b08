"""What is wrong with a model's files is told in one line, before anything is started."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama

from segue.cluster.config.model import ModelConfig
from segue.cluster.errors import ConfigurationError
from segue.workers.models.end_tokens import tokenizer_end
from segue.workers.models.folder import BUNDLED_SAMPLING, resolve_model
from segue.workers.models.sampling_defaults import SamplingDefaults, load_sampling_defaults
from segue.workers.models.spec import load_spec
from segue.workers.models.weight_files import INDEX_FILE, check_weight_file, weight_files

Write = Callable[..., Path]


@pytest.fixture
def whole(bundled_model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in bundled_model.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def replaced(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def refusal(folder: Path, tmp_path: Path) -> str:
    config = ModelConfig.model_validate({"path": str(folder)})
    with pytest.raises(ConfigurationError) as caught:
        load_spec(resolve_model(config, tmp_path / "cache"))
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_whole_folder_passes(whole: Path, tmp_path: Path) -> None:
    resolve_model(ModelConfig.model_validate({"path": str(whole)}), tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 5000, -1])
def test_half_a_download_is_told(whole: Path, tmp_path: Path, kept: int) -> None:
    weights = (whole / "model.safetensors").read_bytes()
    replaced(whole / "model.safetensors", weights[:kept])
    message = refusal(whole, tmp_path)
    assert "model.safetensors" in message and ("truncated" in message or "has" in message)


def test_an_index_that_is_none(whole: Path, tmp_path: Path) -> None:
    for content in (b"{", b"[]", b"{}", b'{"weight_map": 5}', b'{"weight_map": {"a": 1}}'):
        replaced(whole / INDEX_FILE, content)
        assert INDEX_FILE in refusal(whole, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"7", b"[" * 100_000, b"\xff\xfe"])
def test_bad_json_is_one_line_that_names_the_file(
    whole: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    replaced(whole / name, content)
    assert name in refusal(whole, tmp_path)


def test_other_formats_are_no_safetensors(tmp_path: Path) -> None:
    for content in (b"", b"PK\3\4" + bytes(100), (2).to_bytes(8, "little") + b"{}" + b"more"):
        with pytest.raises(ConfigurationError, match="weights"):
            check_weight_file(replaced(tmp_path / "weights", content))


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({}, SamplingDefaults()),
        ({"temperature": 0.6, "min_p": 0.05, "top_k": -1}, SamplingDefaults(0.6, min_p=0.05)),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.5}, SamplingDefaults(0.0)),
        ({"do_sample": True, "temperature": None}, SamplingDefaults()),
        ({"repetition_penalty": 1.1}, SamplingDefaults(repetition_penalty=1.1)),
    ],
)
def test_sampling_defaults(
    tmp_path: Path, written: dict[str, Any], wanted: SamplingDefaults
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    assert load_sampling_defaults(tmp_path) == wanted


@pytest.mark.parametrize("written", [{"temperature": "hot"}, {"top_p": 2}, {"top_k": True}])
def test_sampling_defaults_that_cannot_be(tmp_path: Path, written: dict[str, Any]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    with pytest.raises(ConfigurationError, match=next(iter(written))):
        load_sampling_defaults(tmp_path)


def test_the_bundled_model_is_sampled_as_its_card_says(bundled_model: Path) -> None:
    wanted = SamplingDefaults(BUNDLED_SAMPLING["temperature"], BUNDLED_SAMPLING["top_p"])
    assert load_spec(bundled_model).sampling == wanted == SamplingDefaults(0.2, 0.9)


@pytest.mark.parametrize("spelling", ["text", "object"])
@pytest.mark.parametrize("found_in", ["decoder", "added", "vocabulary"])
def test_the_tokenizers_end_ends_answers(tmp_path: Path, spelling: str, found_in: str) -> None:
    """config.json of many chat models still has the end of the base model."""
    write_tiny_llama(tmp_path, eos_token_id=0)
    end = "<|im_end|>"
    config: dict[str, Any] = {"eos_token": end if spelling == "text" else {"content": end}}
    tokenizer: dict[str, Any] = {"added_tokens": [], "model": {"vocab": {"a": 1}}}
    if found_in == "decoder":
        config["added_tokens_decoder"] = {"5": {"content": end}}
    elif found_in == "added":
        tokenizer["added_tokens"] = [{"id": 5, "content": end}]
    else:
        tokenizer["model"]["vocab"][end] = 5
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert tokenizer_end(tmp_path) == 5
    assert load_spec(tmp_path, load_format="dummy").eos_token_ids == {0, 5}


def test_a_tokenizer_without_an_end_adds_none(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, eos_token_id=0)
    assert tokenizer_end(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert tokenizer_end(tmp_path) is None
    assert load_spec(tmp_path, load_format="dummy").eos_token_ids == {0}


def test_the_bundled_models_files_are_whole(bundled_model: Path, tmp_path: Path) -> None:
    for path in weight_files(bundled_model):
        check_weight_file(path)
        shutil.copy(path, tmp_path / path.name)
        with (tmp_path / path.name).open("ab") as file:
            file.write(b"x")
        with pytest.raises(ConfigurationError, match="header tells of"):
            check_weight_file(tmp_path / path.name)
