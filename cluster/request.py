"""A request as every process sees it: immutable parameters plus an append-only token log.

Positions are absolute: prompt tokens are [0, P), the first produced token is at P.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.retention import NOTHING_SPECIAL, Retention


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence or stop token, or a stop string
    LENGTH = "length"  # max_tokens reached
    ABORT = "abort"  # the client left


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from logits; temperature 0 is greedy. `seed` is always set."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a token ends a sequence. Applied to every token, the first one included."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence tokens included

    def check(self, num_produced: int, token_id: int) -> FinishReason | None:
        """Say whether `token_id`, the `num_produced`-th produced token (from 1), ends it."""
        if token_id in self.stop_token_ids and num_produced > self.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_produced >= self.max_tokens else None

    def forbids_stop(self, num_produced: int) -> bool:
        """True while stop tokens must not be drawn (min_tokens), before produced token n+1."""
        return num_produced < self.min_tokens


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the gateway validated once; workers accept nothing else."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRule
    cache_salt: str = ""
    priority: int = 0  # lower is earlier
    retention: Retention = NOTHING_SPECIAL

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def max_total_tokens(self) -> int:
        return len(self.prompt_token_ids) + self.stop.max_tokens


@dataclass(slots=True)
class TokenLog:
    """The tokens a request has produced so far; it only ever grows."""

    num_prompt_tokens: int
    produced: list[int] = field(default_factory=list)

    @property
    def next_position(self) -> int:
        return self.num_prompt_tokens + len(self.produced)

    def accept(self, position: int, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Append what is new of `token_ids`, whose first stands at `position`; return that.

        Tokens already in the log are dropped. Raises ValueError if a token would be skipped.
        """
        known = self.next_position - position
        if known < 0:
            raise ValueError(f"tokens {self.next_position} to {position - 1} are missing")
        fresh = token_ids[known:]
        self.produced.extend(fresh)
        return fresh
