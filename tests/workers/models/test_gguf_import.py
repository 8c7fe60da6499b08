"""The conversion of a GGUF file: values, types, row order, rope scaling and refusals."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file

from segue.cluster.errors import ConfigurationError
from segue.workers.models.gguf_import import convert_gguf
from segue.workers.models.sampling_defaults import SamplingDefaults
from segue.workers.models.spec import Llama3Scaling, load_spec

F32 = GGMLQuantizationType.F32
Write = Callable[..., Path]


def converted(write: Write, folder: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    convert_gguf(write(folder / "m.gguf", arrays=arrays), folder)
    return load_file(folder / "model.safetensors")


def interleaved(weight: Any, heads: int) -> Any:
    """What llama.cpp does to the rows of each head: halves become neighbours."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def test_rows_of_query_and_key_come_back_in_order(gguf_writer: Write, tmp_path: Path) -> None:
    query = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    key = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
    arrays = {
        "blk.0.attn_q.weight": (interleaved(query, 4), F32),
        "blk.0.attn_k.weight": (interleaved(key, 2), F32),
        "blk.0.attn_v.weight": (key, F32),
    }
    tensors = converted(gguf_writer, tmp_path, arrays)
    prefix = "model.layers.0.self_attn"
    assert np.array_equal(tensors[f"{prefix}.q_proj.weight"], query)
    assert np.array_equal(tensors[f"{prefix}.k_proj.weight"], key)
    assert np.array_equal(tensors[f"{prefix}.v_proj.weight"], key)


def test_quantised_values_lose_nothing_that_matters(gguf_writer: Write, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    huge = values * 1e6
    arrays = {
        "blk.0.ffn_down.weight": (values, GGMLQuantizationType.Q8_0),
        "blk.1.ffn_down.weight": (huge, GGMLQuantizationType.Q8_0),
        "blk.0.attn_output.weight": (values[:, :64], GGMLQuantizationType.F16),
        "blk.1.attn_output.weight": (values[:, :64], F32),
    }
    tensors = converted(gguf_writer, tmp_path, arrays)
    down = "model.layers.{}.mlp.down_proj.weight"
    step = np.abs(values).max() / 127
    assert tensors[down.format(0)].dtype == np.float16
    assert np.abs(tensors[down.format(0)].astype(np.float32) - values).max() < 0.6 * step
    assert tensors[down.format(1)].dtype == np.float32  # float16 would overflow
    assert np.abs(tensors[down.format(1)] / 1e6 - values).max() < 0.6 * step
    output = "model.layers.{}.self_attn.o_proj.weight"
    assert tensors[output.format(0)].dtype == np.float16
    assert np.array_equal(tensors[output.format(1)], values[:, :64])


def divisors(factor: float) -> Any:
    """rope_freqs as llama.cpp's converter writes them for Llama 3.1, here for heads of 16."""
    result = []
    for exponent in np.arange(0, 16, 2) / 16:
        wavelength = 2 * math.pi * 10000.0**exponent
        smooth = (8192 / wavelength - 1.0) / 3.0
        smooth = 1.0 if wavelength < 2048 else 0.0 if wavelength > 8192 else smooth
        result.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(result, dtype=np.float32)


def test_llama3_scaling_is_recovered_from_its_divisors(gguf_writer: Write, tmp_path: Path) -> None:
    converted(gguf_writer, tmp_path, {"rope_freqs.weight": (divisors(32.0), F32)})
    assert load_spec(tmp_path).rope_scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("name", "array", "named"),
    [
        ("rope_freqs.weight", np.linspace(1, 9, 8, dtype=np.float32), "rope_freqs"),
        ("blk.0.attn_q.bias", np.zeros(64, dtype=np.float32), r"attn_q\.bias"),
    ],
)
def test_what_cannot_be_expressed_is_refused(
    gguf_writer: Write, tmp_path: Path, name: str, array: Any, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        converted(gguf_writer, tmp_path, {name: (array, F32)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.scaling.factor", 4.0),  # linear, for llama.cpp, without a type
        ("llama.rope.scale_linear", 4.0),
        ("llama.attention.sliding_window", 4096),
        ("llama.final_logit_softcapping", 30.0),
        ("llama.residual_scale", 0.2),
        ("llama.attention.causal", False),
    ],
)
def test_metadata_that_changes_the_computation_is_refused(
    gguf_writer: Write, tmp_path: Path, key: str, value: Any
) -> None:
    path = gguf_writer(tmp_path / "m.gguf", metadata={key: value})
    with pytest.raises(ConfigurationError, match=key):
        convert_gguf(path, tmp_path)


@pytest.mark.parametrize(
    "metadata", [{"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0}, {}]
)
def test_metadata_that_asks_for_nothing_passes(
    gguf_writer: Write, tmp_path: Path, metadata: dict[str, Any]
) -> None:
    convert_gguf(gguf_writer(tmp_path / "m.gguf", metadata=metadata), tmp_path)
    assert load_spec(tmp_path).rope_scaling is None


def test_one_part_of_a_split_model_is_no_model(gguf_writer: Write, tmp_path: Path) -> None:
    path = gguf_writer(tmp_path / "m.gguf", metadata={"split.count": 3, "split.no": 1})
    with pytest.raises(ConfigurationError, match="part 2 of 3 .* gguf-split --merge"):
        convert_gguf(path, tmp_path)


def test_missing_metadata_is_named(gguf_writer: Write, tmp_path: Path) -> None:
    path = gguf_writer(tmp_path / "m.gguf", merges=False)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.ggml\.merges is missing"):
        convert_gguf(path, tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_half_a_file_is_one_line(gguf_writer: Write, tmp_path: Path, share: float) -> None:
    whole = gguf_writer(tmp_path / "m.gguf").read_bytes()
    part = tmp_path / "part.gguf"
    part.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ConfigurationError, match=r"part\.gguf") as caught:
        convert_gguf(part, tmp_path)
    assert "\n" not in caught.value.message


def test_sampling_defaults_come_along(gguf_writer: Write, tmp_path: Path) -> None:
    own = {"general.sampling.temp": 0.7, "general.sampling.top_k": 40}
    convert_gguf(
        gguf_writer(tmp_path / "m.gguf", metadata=own), tmp_path, {"temperature": 0.2, "top_p": 0.9}
    )
    assert load_spec(tmp_path).sampling == SamplingDefaults(0.7, 0.9, 40)
