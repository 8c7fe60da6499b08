"""Everything the HTTP routes share: the served model, who generates, and the gateway's limits."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from segue.cluster.config.gateway import GatewayConfig
from segue.cluster.loop_lag import LoopLag
from segue.cluster.step_trace import StepRecord
from segue.router.draining import Draining
from segue.router.generation import Generator, ModelCard, Readiness
from segue.router.http_metrics import HttpMetrics
from segue.router.request_names import RequestNames
from segue.router.text_processes import TextProcesses
from segue.router.token_bytes import TokenBytes
from segue.router.traffic_log import TrafficLog


@dataclass(frozen=True, slots=True)
class Service:
    generator: Generator
    card: ModelCard
    config: GatewayConfig
    tokens: TokenBytes
    texts: TextProcesses
    metrics: HttpMetrics
    readiness: Callable[[], Readiness]
    metrics_text: Callable[[], Awaitable[bytes]]
    status: Callable[[], Awaitable[dict[str, Any]]]
    trace: Callable[[str, int], Awaitable[list[StepRecord]]] | None
    keep_alive_seconds: float
    lag: LoopLag
    draining: Draining
    traffic: TrafficLog
    names: RequestNames = field(default_factory=RequestNames)
