"""The limits of a deployment, settled before anything is started."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama

from segue.cluster.config.file import parse_config
from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError
from segue.deploy.served_model import find_model, longest_sequence
from segue.router.generation import ModelCard
from segue.workers.models.computing_dtype import computing_dtype
from segue.workers.models.spec import ModelSpec, load_spec

BLOCK_BYTES = 30 * 2 * 3 * 16 * 64 * 4  # of the bundled model in float32


@pytest.fixture(scope="module")
def spec(bundled_model: Path) -> ModelSpec:
    return load_spec(bundled_model)


def config(engine: dict[str, Any] | None = None, gpus: float = 0, **model: Any) -> SegueConfig:
    pool = {"role": "both", "engine": engine or {}, "replica": {"num_gpus": gpus}}
    model = {"dtype": "float32", **model}
    return parse_config({"model": model, "pools": {"first": {"role": "both"}, "pool": pool}})


def test_without_a_wish_it_is_the_models_own(spec: ModelSpec) -> None:
    assert longest_sequence(config(), spec) == spec.max_position_embeddings == 8192


@pytest.mark.parametrize(
    "engine",
    [{"num_kv_blocks": 10}, {"kv_cache_bytes": 10 * BLOCK_BYTES}, {"num_kv_blocks": 10}],
)
def test_without_a_wish_the_smallest_cache_bounds_it(
    spec: ModelSpec, engine: dict[str, Any]
) -> None:
    assert longest_sequence(config(engine), spec) == 160


def test_a_wish_is_kept_or_refused(spec: ModelSpec) -> None:
    ten = {"num_kv_blocks": 10}
    assert longest_sequence(config(ten, max_model_len=160), spec) == 160
    with pytest.raises(ConfigurationError, match=r"pools.pool.engine.* \(161\) needs 11 KV blocks"):
        longest_sequence(config(ten, max_model_len=161), spec)
    assert longest_sequence(config(max_model_len=8192), spec) == 8192
    with pytest.raises(ConfigurationError, match=r"\(8193\) is more than .* \(8192\)"):
        longest_sequence(config(max_model_len=8193), spec)


def test_smaller_items_hold_more(spec: ModelSpec) -> None:
    engine = {"kv_cache_bytes": 10 * BLOCK_BYTES}
    assert longest_sequence(config(engine, dtype="bfloat16"), spec) == 320


def test_the_memory_of_a_gpu_is_left_to_its_worker(spec: ModelSpec) -> None:
    small = {"kv_cache_bytes": 1}  # not what a GPU's KV-cache is sized by
    assert longest_sequence(config(small, gpus=1), spec) == 8192
    assert longest_sequence(config(small | {"device": "cuda"}, gpus=0.5), spec) == 8192
    assert longest_sequence(config(small | {"num_kv_blocks": 3}, gpus=1), spec) == 48


def test_a_cache_of_one_token_can_serve_nothing(spec: ModelSpec) -> None:
    lone = {"num_kv_blocks": 1, "block_size": 1}
    pools = {"pool": {"role": "both", "engine": lone}}
    with pytest.raises(ConfigurationError, match="one of answer"):
        longest_sequence(parse_config({"model": {"dtype": "float32"}, "pools": pools}), spec)


def test_more_groups_of_layers_than_layers_are_refused(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    model = {"path": str(tmp_path), "load_format": "dummy"}
    for groups, refused in ((1, False), (2, False), (3, True)):
        asked = parse_config({"model": model, "transfer": {"layer_groups": groups}})
        with (
            pytest.raises(ConfigurationError, match=r"transfer.layer_groups \(3\) .* 2 layers")
            if refused
            else nullcontext()
        ):
            assert find_model(asked).config.transfer.layer_groups == groups


@pytest.mark.parametrize(
    ("asked", "gpus", "saved", "found"),
    [
        ("auto", 0, "bfloat16", "float32"),
        ("auto", 1, "bfloat16", "bfloat16"),
        ("auto", 1, "float16", "float16"),
        ("auto", 1, None, "bfloat16"),
        ("float16", 0, "bfloat16", "float16"),
    ],
)
def test_the_type_is_the_checkpoints_on_a_gpu_and_float32_on_a_cpu(
    spec: ModelSpec, asked: str, gpus: float, saved: str | None, found: str
) -> None:
    saved_spec = replace(spec, checkpoint_dtype=saved)
    assert computing_dtype(asked, saved_spec, on_cpu=not gpus) == found


@pytest.mark.parametrize(
    ("dtype", "stored", "gpus", "reason"),
    [
        ("auto", "auto", 0, None),
        ("float32", "auto", 0, None),
        ("bfloat16", "auto", 0, "in bfloat16"),
        ("float16", "int8", 0, "in float16"),
        ("auto", "fp8_e4m3", 0, "with fp8_e4m3"),
        ("float32", "auto", 1, "on a GPU"),
    ],
)
def test_the_log_says_where_an_answer_may_depend_on_its_company(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    dtype: str,
    stored: str,
    gpus: int,
    reason: str | None,
) -> None:
    caplog.set_level("INFO", "segue")
    write_tiny_llama(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    model = {"path": str(tmp_path), "load_format": "dummy", "dtype": dtype}
    engine, replica = {"kv_cache_dtype": stored}, {"num_gpus": gpus}
    pool = {"role": "both", "engine": engine, "replica": replica}
    find_model(parse_config({"model": model, "pools": {"first": pool}}))
    told = [line for line in caplog.messages if "may depend on the requests beside it" in line]
    assert len(told) == (reason is not None)
    assert reason is None or (reason in told[0] and "pool first" in told[0])


def test_sampling_defaults_are_the_models_unless_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "segue")
    write_tiny_llama(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    own = {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    model = {"path": str(tmp_path), "load_format": "dummy"}

    def card(**more: Any) -> ModelCard:
        return find_model(parse_config({"model": {**model, **more}})).card

    found = card()
    assert (found.default_temperature, found.default_top_p) == (0.3, 0.5)
    assert (found.default_top_k, found.default_min_p) == (7, 0.1)
    assert "temperature 0.3, top_p 0.5, top_k 7, min_p 0.1" in caplog.text
    assert "repetition_penalty 1.2, which is not implemented" in caplog.text
    plain = card(generation_config="none")
    assert (plain.default_temperature, plain.default_top_p, plain.default_top_k) == (1.0, 1.0, 0)
