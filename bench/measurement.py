"""What is known of one request after it ended: instants, token counts, or why it failed.

sent            first token      tokens...         finish   [DONE]
 |---- TTFT ----|-- ITL --|-- ITL --|---- ... ------|         |
 |                        TPOT = (finish - first) / (n - 1)   |
 |--------------------------- E2E ----------------------------|
"""

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Why a request does not count as served."""

    CONNECTION = "connection"  # no answer began: refused, reset, unreachable
    HTTP = "http"  # an answer with a status other than 200
    TIMEOUT = "timeout"
    STREAM_ERROR = "stream error"  # the server reported an error inside the stream
    TRUNCATED = "truncated"  # the stream ended without a finish reason and [DONE]
    MALFORMED = "malformed"  # what came is not the protocol
    NO_USAGE = "no usage"  # the token count cannot be verified
    WRONG_LENGTH = "wrong length"  # fewer or more tokens than asked for


@dataclass(frozen=True, slots=True)
class Failure:
    fault: Fault
    detail: str
    status: int | None = None

    @property
    def label(self) -> str:
        return self.fault if self.status is None else f"{self.fault} {self.status}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One request. Instants are seconds after it was sent, except `sent_s` (after the level's
    start). A chunk may carry several tokens: `gaps_s` are between chunks, `tpot_s` is per token.
    """

    sent_s: float
    ended_s: float
    chunks_s: tuple[float, ...] = ()  # arrival of each chunk that brought text
    finish_s: float | None = None  # arrival of the finish reason
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: Failure | None = None

    @property
    def ttft_s(self) -> float | None:
        """To the first text; tokens without text (special ones) are first seen at the finish."""
        return self.chunks_s[0] if self.chunks_s else self.finish_s

    @property
    def gaps_s(self) -> tuple[float, ...]:
        pairs = zip(self.chunks_s, self.chunks_s[1:], strict=False)
        return tuple(after - before for before, after in pairs)

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for an answer of one token."""
        first, tokens = self.ttft_s, self.output_tokens or 0
        if first is None or self.finish_s is None or tokens < 2:
            return None
        return (self.finish_s - first) / (tokens - 1)
