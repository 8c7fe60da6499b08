"""What passes through the gateway, for whoever reads its log: a line a request, and a rate."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from segue.router.exchange import Exchange

logger = logging.getLogger("segue.gateway")

RATE_SECONDS = 10.0
# Asked by probes and scrapers every few seconds: nobody wants a line for each.
_PROBED = frozenset({"/live", "/ready", "/health", "/ping", "/metrics"})
_MAX_PATH_CHARS = 100


@dataclass(slots=True)
class _Totals:
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class TrafficLog:
    """Level INFO. `is_on` False: it says nothing."""

    def __init__(self, is_on: bool) -> None:
        self._is_on = is_on
        self._totals = _Totals()

    def ended(self, method: str, path: str, exchange: Exchange) -> None:
        """Once an exchange, when it is over."""
        self._totals.requests += 1
        self._totals.prompt_tokens += exchange.num_prompt_tokens
        self._totals.output_tokens += exchange.num_output_tokens
        if not self._is_on or (path in _PROBED and exchange.status == 200):
            return
        seconds = time.monotonic() - exchange.began
        parts = [f"{method[:10]} {_plain(path)} {exchange.status or 500}"]
        if exchange.error_type:
            parts.append(exchange.error_type)
        parts.append(f"{seconds:.3f} s")
        if exchange.num_prompt_tokens:
            parts.append(f"{exchange.num_prompt_tokens} + {exchange.num_output_tokens} tokens")
        logger.info("%s id=%s", " ".join(parts), exchange.request_id)

    async def tell_rates(self) -> None:
        """For ever: a line for each time with traffic. Tokens are counted when a request ends."""
        while True:
            before = replace(self._totals)
            began = time.monotonic()
            await asyncio.sleep(RATE_SECONDS)
            seconds, now = time.monotonic() - began, self._totals
            if self._is_on and now.prompt_tokens + now.output_tokens > (
                before.prompt_tokens + before.output_tokens
            ):
                logger.info(
                    "%.1f requests/s ended, %.1f prompt and %.1f output tokens/s",
                    (now.requests - before.requests) / seconds,
                    (now.prompt_tokens - before.prompt_tokens) / seconds,
                    (now.output_tokens - before.output_tokens) / seconds,
                )


def _plain(path: str) -> str:
    """As a line of a log may hold it."""
    return "".join(c if "!" <= c <= "~" else "?" for c in path[:_MAX_PATH_CHARS])
