"""A described workload: what `segue schedule` reads, and the scheduler that it is run through."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from segue.cluster.block_hash import KeyScope
from segue.cluster.config.section import Section
from segue.cluster.errors import ConfigurationError
from segue.cluster.handoff import Assignment
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.scheduler.chunking import ChunkingPolicy
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.policies import capacity_policy
from segue.workers.scheduler.rehearsal import TOKEN, Iteration, Rehearsal
from segue.workers.scheduler.scheduler import Scheduler, SchedulerSettings
from segue.workers.sequence import Sequence

MAX_ITERATIONS = 10_000
SOURCE = Peer(WorkerIdentity("a-peer", "0"), "nowhere:0")


class SharedPrefix(Section):
    """The first `tokens` tokens of a prompt are those of another request's."""

    request: str
    tokens: Annotated[int, Field(ge=1)]


class RequestDescription(Section):
    name: Annotated[str, Field(min_length=1, max_length=40)]
    prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    generated: Annotated[int, Field(ge=0)] = Field(
        default=0, description="tokens it has written before iteration 1; 0: it is still to begin"
    )
    arrives: Annotated[int, Field(ge=1)] = Field(default=1, description="before this iteration")
    priority: int = 0
    salt: str = ""
    adapter: Annotated[str, Field(min_length=1)] | None = None
    shares: SharedPrefix | None = None
    lands: bool = Field(default=False, description="a peer computes its prompt and sends the KV")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.generated >= self.max_tokens:
            raise ValueError(f"{self.name}: generated must be less than max_tokens")
        if self.generated and (self.arrives > 1 or self.lands):
            raise ValueError(f"{self.name}: who generates already neither arrives nor lands")
        if self.shares and self.shares.tokens > self.prompt_tokens:
            raise ValueError(f"{self.name}: shares more tokens than its prompt has")
        return self


class EngineDescription(Section):
    """The keys of an engine's configuration that the scheduler knows, with a number of blocks."""

    block_size: Annotated[int, Field(ge=1, le=512)] = 16
    num_kv_blocks: Annotated[int, Field(ge=1, le=1_000_000)]
    max_num_seqs: Annotated[int, Field(ge=1, le=65536)] = 64
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 512
    chunk_size: Annotated[int, Field(ge=1)] = 128
    chunk_unit: Annotated[int, Field(ge=1)] | None = None
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = (
        "guaranteed_no_evict"
    )
    expected_output: Annotated[int, Field(ge=1)] | Literal["full"] = "full"
    context_chunking_policy: Literal[
        "shortest_first", "first_come_first_served", "equal_progress", "force_chunk", "no_chunking"
    ] = "first_come_first_served"
    max_adapters: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most different adapters of all that are admitted"
    )
    overlap: bool = Field(
        default=False, description="a step begins before the results of the one before are known"
    )
    enable_prefix_caching: bool = True
    enable_delay_for_reuse: bool = True

    def scheduler(self) -> Scheduler:
        try:
            budget = StepBudget(
                self.max_num_batched_tokens,
                self.chunk_size,
                self.block_size,
                ChunkingPolicy(self.context_chunking_policy),
                self.chunk_unit,
            )
            scope = KeyScope("a-model", "any", self.block_size, "any")
            pool = BlockPool(self.num_kv_blocks)
            settings = SchedulerSettings(
                self.max_num_seqs,
                capacity_policy(self.capacity_scheduler_policy, self.expected_output),
                delay_for_reuse=self.enable_delay_for_reuse,
                max_adapters=self.max_adapters,
            )
            cache = KVCache(pool, self.block_size, scope, self.enable_prefix_caching)
            return Scheduler(cache, budget, settings)
        except ValueError as error:
            raise ConfigurationError(f"engine: {error}") from error


class Variant(Section):
    """The same workload with some keys changed."""

    title: str
    engine: dict[str, Any] = {}
    requests: dict[str, dict[str, Any]] = Field(default={}, description="by name")
    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None


class Scenario(Section):
    title: str = ""
    engine: EngineDescription
    requests: Annotated[list[RequestDescription], Field(min_length=1, max_length=4096)]
    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = Field(
        default=None, description="default: until all have ended"
    )
    variants: list[Variant] = []

    @model_validator(mode="after")
    def _names(self) -> Self:
        names: set[str] = set()
        for request in self.requests:
            if request.name in names:
                raise ValueError(f"two requests are named {request.name}")
            if request.shares and request.shares.request not in names:
                raise ValueError(
                    f"{request.name} shares the prompt of {request.shares.request}, "
                    "which does not stand before it"
                )
            names.add(request.name)
        return self

    def each(self) -> Iterator["Scenario"]:
        """Every variant as a scenario of its own; without variants, this one."""
        data = self.model_dump(exclude={"variants"})
        if not self.variants:
            yield self
        for variant in self.variants:
            if unknown := variant.requests.keys() - {r.name for r in self.requests}:
                raise ConfigurationError(f"{variant.title}: no request is named {min(unknown)}")
            changed = dict(data)
            changed["title"] = variant.title
            changed["engine"] = data["engine"] | variant.engine
            changed["requests"] = [
                request | variant.requests.get(request["name"], {}) for request in data["requests"]
            ]
            changed["iterations"] = variant.iterations or self.iterations
            yield _validated(changed, variant.title)

    def run(self) -> Iterator[Iteration]:
        """Raises ConfigurationError for a request that does not fit."""
        scheduler = self.engine.scheduler()
        rehearsal = Rehearsal(scheduler, overlap=self.engine.overlap)
        arrivals: dict[int, list[Sequence]] = {}
        for request, sequence in zip(self.requests, self._sequences(), strict=True):
            if not scheduler.cache.can_ever_fit(sequence):
                raise ConfigurationError(f"{request.name} does not fit {self.engine}")
            self._check_context(request.name, sequence)
            if not request.generated:
                arrivals.setdefault(request.arrives, []).append(sequence)
            elif not rehearsal.begin(sequence):
                raise ConfigurationError(f"no blocks are left for {request.name} to begin with")
        for number in range(1, (self.iterations or MAX_ITERATIONS) + 1):
            for sequence in arrivals.pop(number, ()):
                scheduler.add(sequence)
            if rehearsal.is_over and not arrivals:
                return
            yield rehearsal.step()

    def _check_context(self, name: str, sequence: Sequence) -> None:
        engine = self.engine
        paused = engine.capacity_scheduler_policy == "max_utilization"
        paused = paused or engine.expected_output != "full"
        longest = sequence.num_final if paused else len(sequence.tokens)
        if engine.context_chunking_policy == "no_chunking" and longest > engine.chunk_size:
            raise ConfigurationError(
                f"{name}: without chunking its context, up to {longest} tokens, must fit a step "
                f"(engine.chunk_size: {engine.chunk_size})"
            )

    def _sequences(self) -> Iterator[Sequence]:
        prompts: dict[str, list[int]] = {}
        for number, request in enumerate(self.requests, 1):
            tokens = [number] * request.prompt_tokens
            if request.shares is not None:
                shared = prompts[request.shares.request][: request.shares.tokens]
                tokens[: len(shared)] = shared
            prompts[request.name] = tokens
            generation = GenerationRequest(
                request.name,
                tuple(tokens),
                SamplingParams(temperature=0.0),
                StopRule(request.max_tokens),
                request.salt,
                request.priority,
            )
            # Its newest token has no KV yet, hence is not among those that it begins with.
            produced = (TOKEN,) * max(0, request.generated - 1)
            assignment = Assignment(generation, 1, produced, "", 1.0)
            yield Sequence(
                assignment,
                deadline=0.0,
                source=SOURCE if request.lands else None,
                adapter=request.adapter,
            )


def load_scenario(path: Path) -> Scenario:
    """Raises ConfigurationError that names what is wrong."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid YAML: {error}") from error
    return _validated(data, str(path))


def _validated(data: Any, source: str) -> Scenario:
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, item['loc'])) or '(top level)'}: "
            + item["msg"].removeprefix("Value error, ")
            for item in error.errors()
        ]
        raise ConfigurationError(f"{source}:\n  " + "\n  ".join(lines)) from error
