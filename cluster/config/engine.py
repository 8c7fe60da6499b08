"""The section `engine` of a pool: device, KV-cache, and who runs in a step."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from segue.cluster.config.byte_size import ByteCount
from segue.cluster.config.section import Section


class EngineConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    block_size: Annotated[int, Field(ge=1, le=512)] = 16
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "int8"] = Field(
        default="auto",
        description="how keys and values are stored; auto: as the model computes them; in 8 bits "
        "an answer may depend on the requests beside it",
    )
    num_kv_blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    kv_cache_bytes: Annotated[ByteCount, Field(ge=1)] = Field(
        default=2 * 2**30, description="size of the KV-cache when num_kv_blocks is auto (CPU)"
    )
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.9,
        description="share of free GPU memory for the KV-cache when num_kv_blocks is auto",
    )
    max_kv_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most tokens in the KV-cache; absent: what memory allows"
    )
    host_cache_bytes: Annotated[ByteCount, Field(ge=0)] = Field(
        default=0, description="host memory for KV that the device has no room for; 0: none"
    )
    offload_min_priority: Annotated[int, Field(ge=0, le=100)] = Field(
        default=35, description="KV of a lower retention priority is not moved to the host"
    )
    max_num_seqs: Annotated[int, Field(ge=1)] = Field(default=64, description="sequences a step")
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="tokens a step; auto: chunk_size beside a token of each of max_num_seqs",
    )
    chunk_size: Annotated[int, Field(ge=1)] = Field(
        default=128, description="most prompt tokens of one request a step"
    )
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = (
        Field(
            default="guaranteed_no_evict",
            description="who may hold KV: admit to the end, admit on present need and pause when "
            "it runs out, or fill a batch and let it end. A more urgent request that waits pauses "
            "a running one under max_utilization only",
        )
    )
    expected_output: Annotated[int, Field(ge=1)] | Literal["full", "learned"] = Field(
        default="full",
        description="tokens of an answer for which room is promised when a request is admitted: "
        "all that it may have, what nine in ten of the latest answers stayed within, or a number; "
        "answers that grow longer may pause later ones (not under max_utilization)",
    )
    context_chunking_policy: Literal[
        "shortest_first", "first_come_first_served", "equal_progress", "force_chunk"
    ] = Field(
        default="shortest_first",
        description="how prompts share a step that cannot hold them: half of it in order and half "
        "for those with least left, in order, a block each in turns, or always chunk_size each; "
        "chunk_size caps a share under all of them",
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
            return self.chunk_size + self.max_num_seqs
        return self.max_num_batched_tokens
