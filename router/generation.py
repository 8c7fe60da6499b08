"""The seam inside the router: what the HTTP surface asks for and what a journey gives back."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from segue.cluster.config.client_bounds import ClientBounds
from segue.cluster.request import FinishReason, GenerationRequest


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """New tokens of one request. The last event of a request carries `finish`, and only it.

    A stop token that ended the request (StopRule.stop_token_ids) is included in `token_ids`.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    cached_tokens: int = 0  # prompt tokens taken from a prefix cache; set in the first event
    pool: str = ""  # of the worker that is known to have drawn them


class Generator(Protocol):
    """Runs requests. The journey is the real one."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokensEvent, None]:
        """Yield events until the one with `finish`.

        Raises Unavailable (503) before the first event if nobody can serve; AttemptFailed,
        DeadlineExceeded or Unavailable after it. `aclose()` aborts the request on its workers.
        """
        ...


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str = ""
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The one limits table of the served model; the gateway has no copy of its own."""

    id: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    created: int
    root: str
    default_temperature: float = 1.0
    default_top_p: float = 1.0
    default_top_k: int = 0
    default_min_p: float = 0.0
    default_max_tokens: int | None = None  # of chat answers; None: what the context has left
    bounds: ClientBounds = ClientBounds()
