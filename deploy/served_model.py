"""Finds the model to serve and settles its limits, before anything is started."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.environment import cache_folder
from segue.cluster.config.pool import PoolConfig
from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError
from segue.router.generation import ModelCard
from segue.workers.kv_identity import kv_block_bytes
from segue.workers.kvcache.sizing import BlockSize, check_longest_sequence, num_kv_blocks
from segue.workers.models.computing_dtype import computing_dtype, dependence_on_company
from segue.workers.models.folder import resolve_model
from segue.workers.models.layer_clock import group_ends
from segue.workers.models.sampling_defaults import SamplingDefaults
from segue.workers.models.spec import ModelSpec, load_spec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`config` holds the one max_model_len that gateway and workers go by."""

    folder: Path
    card: ModelCard
    config: SegueConfig


def find_model(config: SegueConfig) -> ServedModel:
    """Convert the model if need be (minutes for a large GGUF file). Raises ConfigurationError."""
    began = time.monotonic()
    logger.info("model %s", config.model.path)
    folder = resolve_model(config.model, cache_folder())
    logger.info("model ready in %s (%.1f s)", folder, time.monotonic() - began)
    spec = load_spec(folder, load_format=config.model.load_format)
    group_ends(spec.num_layers, config.transfer.layer_groups)  # refuses more than there are layers
    on_cpu = any(_on_cpu(pool) for pool in config.pools.values())  # one type: they exchange KV
    config = _with(config, dtype=computing_dtype(config.model.dtype, spec, on_cpu=on_cpu))
    _tell_dependence_on_company(config)
    limit = longest_sequence(config, spec)
    defaults = _sampling_defaults(config, spec)
    return ServedModel(
        folder, _card(config, spec, limit, defaults), _with(config, max_model_len=limit)
    )


def _with(config: SegueConfig, **settled: object) -> SegueConfig:
    """The configuration with what was settled of its model."""
    return config.model_copy(update={"model": config.model.model_copy(update=settled)})


def _tell_dependence_on_company(config: SegueConfig) -> None:
    for name, pool in config.pools.items():
        reason = dependence_on_company(
            config.model.dtype, pool.engine.kv_cache_dtype, on_cpu=_on_cpu(pool)
        )
        if reason is not None:
            logger.info(
                "pool %s: a request's answer may depend on the requests beside it, and be another "
                "one after a recovery: %s",
                *(name, reason),
            )


def _sampling_defaults(config: SegueConfig, spec: ModelSpec) -> SamplingDefaults:
    """Says which they are: an answer that nobody expects may be due to them."""
    if config.model.generation_config == "none":
        return SamplingDefaults()
    defaults = spec.sampling
    if defaults != SamplingDefaults():
        logger.info(
            "the model's own sampling defaults: temperature %g, top_p %g, top_k %d, min_p %g "
            "(model.generation_config: none turns them off)",
            *(defaults.temperature, defaults.top_p, defaults.top_k, defaults.min_p),
        )
    if defaults.repetition_penalty != 1.0:
        logger.warning(
            "the model's generation_config.json asks for repetition_penalty %g, which is not "
            "implemented: answers are sampled without it",
            defaults.repetition_penalty,
        )
    return defaults


def longest_sequence(config: SegueConfig, spec: ModelSpec) -> int:
    """What model.max_model_len says, checked; else as much as model and KV-caches can do.

    A KV-cache sized by the free memory of a GPU is known to its worker only, which checks again.
    """
    trained, asked = spec.max_position_embeddings, config.model.max_model_len
    if asked is not None and asked > trained:
        raise ConfigurationError(
            f"model.max_model_len ({asked}) is more than the model was made for ({trained})"
        )
    limit = asked or trained
    for name, pool in config.pools.items():
        budget = _known_budget(pool)
        if budget is None:
            continue
        engine = pool.engine
        block_bytes = kv_block_bytes(
            spec, config.model.dtype, engine.block_size, engine.kv_cache_dtype
        )
        num_blocks = num_kv_blocks(engine, BlockSize(engine.block_size, block_bytes), budget)
        if asked is None and limit > (room := num_blocks * engine.block_size):
            logger.info(
                "max_model_len is %d, not the model's %d: that is what the %d KV blocks of a "
                "worker of pool %s hold",
                *(room, trained, num_blocks, name),
            )
            limit = room
        try:
            check_longest_sequence(limit, engine.block_size, num_blocks, block_bytes)
        except ConfigurationError as error:
            raise ConfigurationError(f"pools.{name}.engine: {error.message}") from error
    if limit < 2:
        raise ConfigurationError("the KV-cache must hold a token of prompt and one of answer")
    return limit


def _known_budget(pool: PoolConfig) -> int | None:
    """Bytes of KV-cache of one worker; None if only the worker's GPU can tell."""
    engine: EngineConfig = pool.engine
    return engine.kv_cache_bytes if _on_cpu(pool) or engine.num_kv_blocks != "auto" else None


def _on_cpu(pool: PoolConfig) -> bool:
    """As far as the configuration tells."""
    device = pool.engine.device
    return device == "cpu" or (device == "auto" and not pool.replica.num_gpus)


def _card(
    config: SegueConfig, spec: ModelSpec, max_model_len: int, defaults: SamplingDefaults
) -> ModelCard:
    return ModelCard(
        id=config.model.served_name,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        bos_token_id=spec.bos_token_id,
        created=int(time.time()),
        root=config.model.path,
        default_temperature=defaults.temperature,
        default_top_p=defaults.top_p,
        default_top_k=defaults.top_k,
        default_min_p=defaults.min_p,
        default_max_tokens=config.gateway.admission.default_max_tokens,
        bounds=config.gateway.client_bounds,
    )
