"""What the gateway measures of its own requests, in the text format of Prometheus.

A fault in here must never become the fault of a request: the writing methods do not raise.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import ParamSpec

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from segue.router.exchange import Exchange, error_type_of

log = logging.getLogger(__name__)

GENERATION_ENDPOINTS = frozenset({"/v1/completions", "/v1/chat/completions"})
# vLLM's buckets, so that existing dashboards compare.
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80, 160, 640, 2560),
)
ITL_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960),
    *(1920, 7680),
)
POOLED = ("model_name", "pool")  # labels: the pool of the worker that drew the tokens
_P = ParamSpec("_P")


def _never_raises(record: Callable[_P, None]) -> Callable[_P, None]:
    @functools.wraps(record)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception:
            log.exception("a metric could not be recorded")

    return guarded


class HttpMetrics:
    """`in_flight` is asked at scrape time, so the gauge can not drift from the truth."""

    def __init__(
        self,
        in_flight: Callable[[], int],
        registry: CollectorRegistry | None = None,
        model_name: str = "",
    ) -> None:
        self._model_name = model_name
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a line more for each series, which nobody reads
        self.registry = registry or CollectorRegistry(auto_describe=True)
        self.gauge("segue_inflight_requests", "Admitted requests that have not ended", in_flight)
        self._requests = Counter(
            "segue_requests",
            "HTTP requests by how they ended; 499 is a client that left",
            ("endpoint", "status", "error_type"),
            registry=self.registry,
        )
        self._ttft = self._histogram(
            "segue_time_to_first_token_seconds", "Arrival to first token", TTFT_BUCKETS, POOLED
        )
        self._itl = self._histogram(
            "segue_inter_token_latency_seconds",
            "Time between tokens of a sample",
            ITL_BUCKETS,
            POOLED,
        )
        self._decode_time = self._histogram(
            "segue_request_decode_time_seconds",
            "First to last token of a sample",
            LATENCY_BUCKETS,
            POOLED,
        )
        self._latency = self._histogram(
            "segue_e2e_request_latency_seconds", "Arrival to end, successes only", LATENCY_BUCKETS
        )
        self._prompt = self._counter("segue_prompt_tokens", "Prompt tokens of started requests")
        self._cached = self._counter(
            "segue_cached_prompt_tokens", "Prompt tokens taken from a prefix cache"
        )
        self._generated = self._counter("segue_generation_tokens", "Tokens produced")

    @_never_raises
    def ended(self, exchange: Exchange) -> None:
        """Count the outcome; called once an exchange, when it is over."""
        status = exchange.status or 500
        error_type = exchange.error_type or error_type_of(status)
        self._requests.labels(exchange.endpoint, str(status), error_type).inc()
        if status == 200 and exchange.endpoint in GENERATION_ENDPOINTS:
            self._latency.observe(time.monotonic() - exchange.began)

    @_never_raises
    def first_token(self, exchange: Exchange, pool: str) -> None:
        self._ttft.labels(self._model_name, pool).observe(time.monotonic() - exchange.began)

    @_never_raises
    def decoded(self, seconds: float, pool: str) -> None:
        """A sample has ended so long after its first token."""
        self._decode_time.labels(self._model_name, pool).observe(seconds)

    @_never_raises
    def tokens(self, num_tokens: int, gap_seconds: float | None, pool: str) -> None:
        """`num_tokens` came together, `gap_seconds` after the ones before (None: the first)."""
        self._generated.inc(num_tokens)
        if gap_seconds is not None:
            itl = self._itl.labels(self._model_name, pool)
            for _ in range(num_tokens):
                itl.observe(gap_seconds / num_tokens)

    @_never_raises
    def prompt(self, num_tokens: int, num_cached: int) -> None:
        self._prompt.inc(num_tokens)
        self._cached.inc(num_cached)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.registry.register(_Reading(name, text, read))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)


class _Reading(Collector):
    """A gauge that is read when it is scraped."""

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._read = read

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(self._name, self._text, value=self._read())
