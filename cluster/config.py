"""The configuration: one YAML file to frozen pydantic models, checked whole at load.

Unknown keys are refused with the nearest known name. The only module that reads the environment.
"""

import difflib
import os
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from segue.cluster.errors import ConfigurationError
from segue.cluster.yaml_file import read_yaml

BUNDLED_MODEL = "smollm2-135m"
Role = Literal["prefill", "decode", "both"]
LadderName = Literal["full", "no_local_prefill", "no_local_decode", "pairs_only"]
# A pool's name is a Ray resource and a metrics label; lower case keeps it off Ray's CPU and GPU.
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]
RAY_RESOURCES = frozenset({"memory", "object_store_memory"})


class Section(BaseModel):
    # No infinity: every wait has a deadline.
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )


class ModelConfig(Section):
    """Which model is served. `path`: a Hugging Face folder, a GGUF file, or the bundled model."""

    path: str = Field(default=BUNDLED_MODEL, description="folder, .gguf file, or 'smollm2-135m'")
    id: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="the name clients use; default: last part of path"
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="prompt + answer tokens; default: the model's own, or what the KV-caches hold",
    )

    @property
    def served_name(self) -> str:
        return self.id or Path(self.path).name.removesuffix(".gguf") or self.path


class AdmissionConfig(Section):
    max_queued_requests: Annotated[int, Field(ge=1)] = Field(
        default=256,
        description="requests in the gateway at once; more are answered overload_status",
    )
    overload_status: Literal[429, 503] = 429
    retry_after_s: Annotated[int, Field(ge=1)] = 1
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20


class RecoveryConfig(Section):
    max_attempts: Annotated[int, Field(ge=1)] = Field(
        default=4,
        description="tries at one request, the first one included; that a worker which is leaving "
        "takes nothing more is no try",
    )
    worker_wait_s: Annotated[float, Field(ge=0)] = Field(
        default=20.0, description="how long a started request waits for any worker to come back"
    )
    rebind_wait_s: Annotated[float, Field(ge=0)] = Field(
        default=1.0,
        description="a request that waits for room at its decode worker asks another one that "
        "seems to have some, for this long; 0: it stays where it is",
    )
    ladder: LadderName = Field(
        default="full",
        description="what a request may fall back to when there is no pair of workers for it: a "
        "decode worker that reads the prompt itself, then a prefill worker that writes the answer; "
        "without the first, without the second, or neither. At the end of the ladder it is "
        "answered 503 with Retry-After",
    )


class GatewayConfig(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_keys_file: str | None = Field(
        default=None, description="one key a line; absent: no key is asked"
    )
    drain_timeout_s: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="how long running requests may take when the gateway is to stop"
    )
    admission: AdmissionConfig = AdmissionConfig()
    recovery: RecoveryConfig = RecoveryConfig()


class ReplicaConfig(Section):
    """What Ray must find on a node for one worker of the pool."""

    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    resources: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        default=None, description="default: 1 of a resource named after the pool"
    )
    label_selector: dict[str, str] = {}


class EngineConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    block_size: Annotated[int, Field(ge=1, le=512)] = 16
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "int8"] = Field(
        default="auto",
        description="how keys and values are stored; auto: as the model computes them",
    )
    num_kv_blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    kv_cache_bytes: Annotated[int, Field(ge=1)] = Field(
        default=2 * 2**30, description="size of the KV-cache when num_kv_blocks is auto (CPU)"
    )
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.9,
        description="share of free GPU memory for the KV-cache when num_kv_blocks is auto",
    )
    max_kv_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most tokens in the KV-cache; absent: what memory allows"
    )
    host_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        default=0, description="host memory for KV that the device has no room for; 0: none"
    )
    offload_min_priority: Annotated[int, Field(ge=0, le=100)] = Field(
        default=35, description="KV of a lower retention priority is not moved to the host"
    )
    max_num_seqs: Annotated[int, Field(ge=1)] = Field(default=64, description="sequences a step")
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="tokens a step; auto: the larger of chunk_size and max_num_seqs",
    )
    chunk_size: Annotated[int, Field(ge=1)] = Field(
        default=128, description="most prompt tokens of one request a step"
    )
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = (
        Field(
            default="guaranteed_no_evict",
            description="who may hold KV: admit to the end, admit on present need and pause when "
            "it runs out, or fill a batch and let it end",
        )
    )
    expected_output: Annotated[int, Field(ge=1)] | Literal["full", "learned"] = Field(
        default="full",
        description="tokens of an answer for which room is promised when a request is admitted: "
        "all that it may have, what nine in ten of the latest answers stayed within, or a number; "
        "answers that grow longer may pause later ones (not under max_utilization)",
    )
    context_chunking_policy: Literal["first_come_first_served", "equal_progress", "force_chunk"] = (
        Field(
            default="first_come_first_served",
            description="how prompts share a step that cannot hold them: in order, a block each in "
            "turns, or always chunk_size each; chunk_size caps a share under all three",
        )
    )
    priority_ageing_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="waiting this long is worth one step of priority"
    )
    enable_delay_for_reuse: bool = Field(
        default=True,
        description="let a prompt wait while another one computes the block it would share",
    )
    enable_prefix_caching: bool = True
    enable_partial_reuse: bool = Field(
        default=True, description="reuse also the first tokens of a block that agrees in part"
    )
    copy_on_partial_reuse: bool = Field(
        default=True, description="by a copy of the block; else only of blocks nobody uses"
    )
    kv_event_capacity: Annotated[int, Field(ge=0, le=2**20)] = Field(
        default=0,
        description="how many events of KV blocks (stored, removed, moved) are kept; 0: none",
    )
    torch_threads: Annotated[int, Field(ge=1)] = 1
    trace_steps: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=512,
        description="how many engine steps, that compute or only decide, are remembered for "
        "`segue trace`",
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.chunk_size % self.block_size:
            raise ValueError(
                f"chunk_size ({self.chunk_size}) must be a multiple of block_size "
                f"({self.block_size})"
            )
        if self.expected_output != "full" and self.capacity_scheduler_policy == "max_utilization":
            raise ValueError(
                f"expected_output ({self.expected_output}) has no meaning under "
                "capacity_scheduler_policy max_utilization, which promises no room to answers"
            )
        if self.chunk_size > self.token_budget:
            raise ValueError(
                f"chunk_size ({self.chunk_size}) must not exceed max_num_batched_tokens "
                f"({self.token_budget}): no chunk would ever fit a step"
            )
        if self.max_num_seqs > self.token_budget:
            raise ValueError(
                f"max_num_seqs ({self.max_num_seqs}) must not exceed max_num_batched_tokens "
                f"({self.token_budget}): each running sequence takes one token a step"
            )
        return self

    @property
    def token_budget(self) -> int:
        """max_num_batched_tokens as a number."""
        if self.max_num_batched_tokens == "auto":
            return max(self.chunk_size, self.max_num_seqs)
        return self.max_num_batched_tokens


class PoolConfig(Section):
    role: Role
    num_replicas: Annotated[int, Field(ge=0)] = 1
    replica: ReplicaConfig = ReplicaConfig()
    engine: EngineConfig = EngineConfig()


class TransferConfig(Section):
    transport: Literal["nixl", "loopback"] = Field(
        default="nixl", description="loopback works within one process only (tests)"
    )
    checksum: bool = Field(default=True, description="verify each block after it was read")
    layer_groups: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None, description="groups of layers in which a last chunk is sent; default: 2"
    )
    lease_s: Annotated[float, Field(gt=0)] = 30.0
    credit_wait_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0, description="how long a prompt waits for room on its decode worker"
    )
    read_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    require_transport: Literal["any", "rdma", "nvlink", "shm", "tcp"] = Field(
        default="any", description="workers that would exchange KV in another way are kept apart"
    )
    preflight_bytes: Annotated[int, Field(ge=4096, le=2**26)] = Field(
        default=2**20, description="length of the pattern that two workers exchange when they meet"
    )
    preflight_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="how long that exchange may take"
    )
    migration_wait_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0,
        description="how long a running request that is to move waits for room at its new worker",
    )
    migration_pause_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0,
        description="a moving request goes on where it was if nobody took over this long after "
        "it had stopped",
    )


class ControlConfig(Section):
    heartbeat_s: Annotated[float, Field(gt=0)] = 1.0
    dead_after_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="a silent but connected worker is replaced after this long"
    )
    suspect_after_s: Annotated[float, Field(gt=0)] = Field(
        default=2.5, description="a silent worker gets no new requests after this long"
    )
    drain_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0,
        description="a draining worker leaves when nothing is left on it, at the latest then; what "
        "it still writes goes on elsewhere",
    )
    start_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=300.0,
        description="a worker that is not ready this long after its process began is replaced",
    )
    stalled_after_s: Annotated[float, Field(gt=0)] = Field(
        default=60.0,
        description="a worker in which something has not moved for so long, though it has work, "
        "gets no new requests until it moves",
    )
    wedged_after_s: Annotated[float, Field(gt=0)] = Field(
        default=180.0,
        description="and is replaced after this long; must exceed the longest step of the engine",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.heartbeat_s < self.suspect_after_s <= self.dead_after_s:
            raise ValueError(
                "heartbeat_s < suspect_after_s <= dead_after_s must hold, got "
                f"{self.heartbeat_s}, {self.suspect_after_s}, {self.dead_after_s}"
            )
        if self.stalled_after_s > self.wedged_after_s:
            raise ValueError(
                f"wedged_after_s ({self.wedged_after_s}) must not be below stalled_after_s "
                f"({self.stalled_after_s})"
            )
        return self


def _default_pools() -> dict[str, PoolConfig]:
    return {"prefill": PoolConfig(role="prefill"), "decode": PoolConfig(role="decode")}


class SegueConfig(Section):
    """The whole file. Every key has a default: without a file the bundled model is served."""

    model: ModelConfig = ModelConfig()
    gateway: GatewayConfig = GatewayConfig()
    pools: dict[PoolName, PoolConfig] = Field(default_factory=_default_pools, min_length=1)
    transfer: TransferConfig = TransferConfig()
    control: ControlConfig = ControlConfig()

    @model_validator(mode="after")
    def _pools_agree(self) -> Self:
        if taken := RAY_RESOURCES & self.pools.keys():
            raise ValueError(f"pools: '{min(taken)}' is a resource of Ray itself; rename the pool")
        roles = {pool.role for pool in self.pools.values()}
        if "both" not in roles and not {"prefill", "decode"} <= roles:
            missing = ({"prefill", "decode"} - roles).pop()
            raise ValueError(f"pools: no pool has role '{missing}' (nor 'both')")
        for field in ("block_size", "kv_cache_dtype"):  # what a block is
            found = {name: getattr(pool.engine, field) for name, pool in self.pools.items()}
            if len(set(found.values())) > 1:
                raise ValueError(f"pools: engine.{field} must be equal everywhere, got {found}")
        return self


def load_config(path: str | Path | None) -> SegueConfig:
    """Read `path`, or give the defaults. Raises ConfigurationError that names each wrong key."""
    if path is None:
        return SegueConfig()
    data = read_yaml(path)
    return parse_config({} if data is None else data, source=str(path))


def parse_config(data: Any, source: str = "configuration") -> SegueConfig:
    if not isinstance(data, dict):
        raise ConfigurationError(f"{source}: expected a mapping at the top level")
    try:
        return SegueConfig.model_validate(data)
    except ValidationError as error:
        lines = [_explain(SegueConfig, dict(item)) for item in error.errors()]
        raise ConfigurationError(f"{source}:\n  " + "\n  ".join(lines)) from error


def _explain(root: type[BaseModel], item: dict[str, Any]) -> str:
    location: tuple[str | int, ...] = item["loc"]
    where = ".".join(str(part) for part in location) or "(top level)"
    if item["type"] != "extra_forbidden":
        return f"{where}: {item['msg'].removeprefix('Value error, ')}"
    known = _fields_at(root, location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
    return f"{where}: unknown key; {hint}"


def _fields_at(root: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Names the keys of the section at `location`, which may pass through names of pools."""
    here: Any = root
    for part in location:
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = here.model_fields[str(part)].annotation
        else:
            here = get_args(here)[-1]  # the values of a mapping
    return list(here.model_fields)


def cache_folder() -> Path:
    """Where converted models are kept: SEGUE_CACHE, else XDG_CACHE_HOME/segue, else ~/.cache."""
    if explicit := os.environ.get("SEGUE_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segue"


def api_key_from_environment() -> str | None:
    """SEGUE_API_KEY, for clients: `ps` shows a key on a command line to everybody."""
    return os.environ.get("SEGUE_API_KEY") or None


def quiet_grpc() -> None:
    """Keep gRPC's own lines off the terminal. It must not be imported yet: it reads this then."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def prepare_ray(*, own_cluster: bool) -> None:
    """Set what Ray reads from the environment; what the user has set stays.

    Must come before Ray is imported, which reads RAY_AUTH_MODE only then.
    """
    if not own_cluster:
        # Each look for the cluster takes 40 s; the 20 that Ray makes would seem to hang.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
        return
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for setting in ("RAY_enable_worker_prestart", "RAY_prestart_worker_first_driver"):
        os.environ.setdefault(setting, "0")  # only the processes that are used
