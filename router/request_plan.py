"""Turns a checked body and its prompt tokens into the requests that workers will run."""

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from segue.cluster.errors import InvalidRequest, ModelNotFound
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.router.api_types import MAX_STOP_CHARS, MAX_STOP_STRINGS, ChatBody, GenerationBody
from segue.router.client_bounds import bounded_priority, bounded_retention
from segue.router.generation import ModelCard
from segue.router.prompts import check_token_ids
from segue.router.text_assembler import TextOptions

COMPLETION_MAX_TOKENS = 16  # OpenAI's default; chat has none and takes what is left
_GREEDY_BELOW = 1e-5  # temperatures under this would overflow when logits are divided by them


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One HTTP request, valid as a whole. Choice i*n + j is sample j of prompt i."""

    requests: tuple[GenerationRequest, ...]
    n: int
    text: TextOptions
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [request.prompt_token_ids for request in self.requests[:: self.n]]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


def check_model(name: str | None, card: ModelCard) -> None:
    if name is not None and name != card.id:
        message = f"the model '{name[:200]}' does not exist; served: {card.id}"
        raise ModelNotFound(message, param="model")


def check_options(body: GenerationBody, card: ModelCard) -> None:
    """All rules that need no prompt; they run before anything is tokenized."""
    check_model(body.model, card)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    if (body.n or 1) > 1 and _temperature(body, card) == 0:
        raise InvalidRequest("n must be 1 when temperature is 0: all would be equal", param="n")
    asked = _asked_max_tokens(body)
    if asked is not None and (body.min_tokens or 0) > asked:
        raise _min_above_max(body.min_tokens or 0, asked)
    if any(character in "@/\\\0" for character in body.cache_salt or ""):
        raise InvalidRequest("cache_salt must not contain @, /, \\ or NUL", param="cache_salt")
    if body.stop_token_ids:
        check_token_ids(body.stop_token_ids, card, "stop_token_ids")
    _stop_strings(body.stop)
    bounded_priority(body.priority, card.bounds)
    bounded_retention(body.kv_cache_retention_config, card.bounds)


def plan_requests(
    body: GenerationBody, prompts: Sequence[tuple[int, ...]], card: ModelCard
) -> RequestPlan:
    """Raises InvalidRequest if a prompt does not fit the model. `check_options` comes first."""
    n = body.n or 1
    name = uuid.uuid4().hex  # never the client's: two requests must not meet in the workers
    eos = frozenset[int]() if body.ignore_eos else card.eos_token_ids
    priority = bounded_priority(body.priority, card.bounds)
    retention = bounded_retention(body.kv_cache_retention_config, card.bounds)
    requests: list[GenerationRequest] = []
    for first, prompt in zip(range(0, len(prompts) * n, n), prompts, strict=True):
        stop = StopRule(
            max_tokens=_max_tokens(body, len(prompt), card),
            min_tokens=body.min_tokens or 0,
            stop_token_ids=eos | frozenset(body.stop_token_ids or ()),
        )
        # Without a seed each prompt draws its own, else equal prompts would get equal answers.
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
        requests += (
            GenerationRequest(
                request_id=f"{name}-{first + j}",
                prompt_token_ids=prompt,
                sampling=_sampling(body, card, sample_seed(seed, j)),
                stop=stop,
                cache_salt=body.cache_salt or "",
                priority=priority,
                retention=retention,
            )
            for j in range(n)
        )
    options = body.stream_options
    return RequestPlan(
        requests=tuple(requests),
        n=n,
        text=_text_options(body, eos),
        stream=body.stream or False,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        return_token_ids=body.return_token_ids or False,
    )


def sample_seed(seed: int, sample: int) -> int:
    """Sample 0 has the request's own seed, so that n=1 is the first of n=k."""
    if sample == 0:
        return seed
    digest = hashlib.sha256(f"segue-sample:{seed}:{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _sampling(body: GenerationBody, card: ModelCard, seed: int) -> SamplingParams:
    top_k = card.default_top_k if body.top_k is None else body.top_k
    return SamplingParams(
        temperature=_temperature(body, card),
        top_p=card.default_top_p if body.top_p is None else body.top_p,
        top_k=max(top_k, 0),
        min_p=card.default_min_p if body.min_p is None else body.min_p,
        seed=seed,
    )


def _temperature(body: GenerationBody, card: ModelCard) -> float:
    value = card.default_temperature if body.temperature is None else body.temperature
    return 0.0 if value < _GREEDY_BELOW else value


def _text_options(body: GenerationBody, eos: frozenset[int]) -> TextOptions:
    return TextOptions(
        stop=_stop_strings(body.stop),
        min_tokens=body.min_tokens or 0,
        include_stop=body.include_stop_str_in_output or False,
        skip_special_tokens=body.skip_special_tokens is not False,
        eos_token_ids=eos,
    )


def _stop_strings(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise InvalidRequest("stop must be a string or a list of strings", param="stop")
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop: at most {MAX_STOP_STRINGS} strings", param="stop")
    if any(not 1 <= len(item) <= MAX_STOP_CHARS for item in strings):
        raise InvalidRequest(
            f"stop: each string must have 1 to {MAX_STOP_CHARS} characters", param="stop"
        )
    return tuple(dict.fromkeys(strings))


def _asked_max_tokens(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens


def _max_tokens(body: GenerationBody, num_prompt_tokens: int, card: ModelCard) -> int:
    if num_prompt_tokens == 0:
        raise InvalidRequest("the prompt has no tokens", param=_prompt_field(body))
    left = card.max_model_len - num_prompt_tokens
    if left < 1:
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens; the model's limit of "
            f"{card.max_model_len} tokens includes at least one of the answer",
            param=_prompt_field(body),
        )
    asked = _asked_max_tokens(body)
    if asked is None:
        bound = card.default_max_tokens if isinstance(body, ChatBody) else COMPLETION_MAX_TOKENS
        asked = left if bound is None else min(left, bound)
        if (body.min_tokens or 0) > asked:
            raise _min_above_max(body.min_tokens or 0, asked)
    if asked > left:
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens and {asked} were asked for, "
            f"{num_prompt_tokens + asked} in all; the model's limit is {card.max_model_len}",
            param=_max_tokens_field(body),
        )
    return asked


def _max_tokens_field(body: GenerationBody) -> str:
    newer = isinstance(body, ChatBody) and body.max_completion_tokens is not None
    return "max_completion_tokens" if newer else "max_tokens"


def _prompt_field(body: GenerationBody) -> str:
    return "messages" if isinstance(body, ChatBody) else "prompt"


def _min_above_max(min_tokens: int, max_tokens: int) -> InvalidRequest:
    message = f"min_tokens ({min_tokens}) must not exceed max_tokens ({max_tokens})"
    return InvalidRequest(message, param="min_tokens")
