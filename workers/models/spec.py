"""Says what a model is (shapes, rope, token ids, revision), read from its folder without torch."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segue.cluster.errors import ConfigurationError
from segue.workers.models.content_digest import content_digest
from segue.workers.models.end_tokens import tokenizer_end
from segue.workers.models.json_file import read_json
from segue.workers.models.sampling_defaults import (
    GENERATION_CONFIG,
    SamplingDefaults,
    load_sampling_defaults,
)
from segue.workers.models.weight_files import weight_files

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
# Keys of models that are Llamas but for one thing, with the values that ask for nothing.
_VARIANTS: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "qk_norm": (False,),
    "use_qk_norm": (False,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "embedding_multiplier": (1,),
    "attention_multiplier": (),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1,),
}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """How Llama 3.1 stretches the wavelengths of its rotary embedding."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    rms_norm_eps: float
    tied_embeddings: bool
    max_position_embeddings: int
    initializer_range: float
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    sampling: SamplingDefaults
    checkpoint_dtype: str | None  # in which the weights were saved, if it is told
    revision: str

    @property
    def num_parameters(self) -> int:
        """All weights of a Llama: embeddings, attention, feed-forward and norms."""
        width, heads = self.hidden_size, self.num_heads + self.num_kv_heads
        attention = 2 * width * heads * self.head_dim
        layer = attention + 3 * width * self.intermediate_size + 2 * width
        tables = 1 if self.tied_embeddings else 2
        return tables * self.vocab_size * width + self.num_layers * layer + width

    @property
    def position_settings(self) -> str:
        """What decides a key's rotation; part of the name of a KV block."""
        return f"theta={self.rope_theta!r} scaling={self.rope_scaling!r}"


def load_spec(folder: Path, *, load_format: str = "auto", dummy_seed: int = 0) -> ModelSpec:
    """Read `config.json` and `generation_config.json`. Raises ConfigurationError."""
    source = folder / "config.json"
    raw = read_json(source)
    generation_source = folder / GENERATION_CONFIG
    generation = read_json(generation_source) if generation_source.exists() else {}
    sampling = load_sampling_defaults(folder)
    end = tokenizer_end(folder)
    revision = _revision(folder, dummy_seed if load_format == "dummy" else None)
    try:
        spec = _parse(_Reader(raw, source), _Reader(generation, generation_source), revision)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{source}: cannot be understood: {error!r}") from error
    ends = spec.eos_token_ids | ({end} if end is not None and end < spec.vocab_size else set())
    return replace(spec, sampling=sampling, eos_token_ids=ends)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed look-ups in one JSON object; a null counts as absent."""

    values: Mapping[str, Any]
    source: Path

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{self.source}: {key} must be a positive integer: {value!r}")
        return value


def _parse(config: _Reader, generation: _Reader, revision: str) -> ModelSpec:
    architecture = _architecture(config)
    _refuse_variants(config)
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    num_kv_heads = config.positive("num_key_value_heads", num_heads)
    head_dim = config.positive("head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ConfigurationError(
            f"{config.source}: {num_heads} heads of {head_dim} with {num_kv_heads} key-value heads "
            "do not divide evenly"
        )
    theta, scaling = _rope(config)
    return ModelSpec(
        architecture=architecture,
        num_layers=config.positive("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.positive("intermediate_size"),
        vocab_size=config.positive("vocab_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_position_embeddings=config.positive("max_position_embeddings", 2048),
        initializer_range=float(config.get("initializer_range", 0.02)),
        eos_token_ids=_ids(generation.get("eos_token_id")) | _ids(config.get("eos_token_id")),
        bos_token_id=generation.get("bos_token_id", config.get("bos_token_id")),
        sampling=SamplingDefaults(),
        checkpoint_dtype=config.get("dtype", config.get("torch_dtype")),
        revision=revision,
    )


def _architecture(config: _Reader) -> str:
    named = config.get("architectures", [])
    if not named and config.get("model_type") == "llama":
        named = ["LlamaForCausalLM"]
    for name in named:
        if name in SUPPORTED_ARCHITECTURES:
            return str(name)
    found = ", ".join(map(str, named)) or config.get("model_type", "nothing")
    raise ConfigurationError(
        f"{config.source}: architecture {found} is not supported; "
        f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def _refuse_variants(config: _Reader) -> None:
    """Refuse what would change the computation and is not implemented."""
    for key, neutral in _VARIANTS.items():
        value = config.get(key)
        if value is not None and value not in neutral:
            raise ConfigurationError(f"{config.source}: {key} = {value!r} is not supported")
    layers = config.get("layer_types", [])
    if others := sorted({str(kind) for kind in layers} - {"full_attention"}):
        raise ConfigurationError(f"{config.source}: layer_types {others} are not supported")


def _rope(config: _Reader) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_scaling` (before)."""
    newer = _Reader(config.get("rope_parameters", {}), config.source)
    older = _Reader(config.get("rope_scaling", {}), config.source)
    rope = newer if newer.values else older
    theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    if float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ConfigurationError(f"{config.source}: partial_rotary_factor is not supported")
    kind = _rope_kind(rope)
    if older.values and _rope_kind(older) != kind:
        raise ConfigurationError(
            f"{config.source}: rope_parameters says {kind!r}, rope_scaling {_rope_kind(older)!r}"
        )
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigurationError(f"{config.source}: rope type {kind!r} is not supported")
    return theta, _llama3(rope, config)


def _rope_kind(rope: _Reader) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _llama3(rope: _Reader, config: _Reader) -> Llama3Scaling:
    missing = [
        key for key in ("factor", "low_freq_factor", "high_freq_factor") if rope.get(key) is None
    ]
    if missing:
        raise ConfigurationError(f"{config.source}: rope type llama3 lacks {', '.join(missing)}")
    return Llama3Scaling(
        factor=float(rope.get("factor")),
        low_freq_factor=float(rope.get("low_freq_factor")),
        high_freq_factor=float(rope.get("high_freq_factor")),
        original_max_position_embeddings=rope.positive(
            "original_max_position_embeddings", config.positive("max_position_embeddings", 2048)
        ),
    )


def _ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(map(int, value)) if isinstance(value, list) else frozenset((int(value),))


def _revision(folder: Path, dummy_seed: int | None) -> str:
    """Name the weights by content: the same on every machine that holds the same files."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    if dummy_seed is not None:
        digest.update(f"dummy weights, seed {dummy_seed}".encode())
        return digest.hexdigest()
    for path in weight_files(folder):
        digest.update(f"{path.name}\0{content_digest(path)}\0".encode())
    return digest.hexdigest()
