"""The fleet in Prometheus text: every worker's state, asked for when it is scraped.

One entry in the tables below makes one metric; workers report plain numbers by name.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from segue.cluster.errors import SegueError
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.router.journey import JourneyCounters
from segue.router.links import WorkerLinks

STATUS_SECONDS = 1.0
LABELS = ("model_name", "pool", "role", "worker_id")

GAUGES = {
    "running_requests": ("segue_num_requests_running", "Sequences that compute."),
    "landing_requests": ("segue_num_requests_landing", "Sequences whose KV is arriving."),
    "waiting_requests": (
        "segue_num_requests_waiting",
        "Attempts that wait for credit, blocks, a slot, or their reader's release.",
    ),
    "event_loop_lag_seconds": (
        "segue_worker_event_loop_lag_seconds",
        "Greatest lag of a worker's event loop in the last 15 s.",
    ),
    "leases": ("segue_kv_leases", "Leases that readers hold on this worker's blocks."),
    "reads_in_flight": ("segue_kv_reads_in_flight", "Reads from peers that have not ended."),
    "reads_overdue": (
        "segue_kv_reads_overdue",
        "Reads given up whose end is still awaited; their blocks are in quarantine.",
    ),
    "kv_blocks_total": ("segue_kv_blocks_capacity", "Blocks of the KV-cache."),
    "kv_block_bytes": ("segue_kv_block_size_bytes", "Bytes of one KV block."),
    "kv_blocks_promised": ("segue_kv_blocks_promised", "Blocks kept for admitted answers."),
    "kv_tokens_unpromised": (
        "segue_kv_tokens_unpromised",
        "Tokens for which there is room beside all that is promised.",
    ),
    "free_slots": ("segue_free_slots", "Sequences that may be admitted beside the present ones."),
    "expected_output_tokens": (
        "segue_expected_output_tokens",
        "Room promised to an answer that may be longer; absent: all that it may have.",
    ),
    "expected_output_share": (
        "segue_expected_output_share",
        "Share of its limit that an answer is expected to use; absent: nothing was learned yet.",
    ),
    "credits_waiting": ("segue_credits_waiting", "Prompts that wait for a credit to be sent here."),
    "credits_held": ("segue_credits_held", "Prompts with a credit whose KV is not here yet."),
    "credit_oldest_wait_seconds": (
        "segue_credit_oldest_wait_seconds",
        "How long the longest of those has waited.",
    ),
    "credit_next_deadline_seconds": (
        "segue_credit_next_deadline_seconds",
        "Until the first of them gives up.",
    ),
}
COUNTERS = {
    "steps": ("segue_engine_steps", "Engine steps."),
    "context_tokens": ("segue_prefill_computed_tokens", "Context tokens that were computed."),
    "generated_tokens": ("segue_sampled_tokens", "Tokens that were sampled or taken over."),
    "attempts_received": ("segue_attempts_received", "Attempts that were taken on."),
    "kv_bytes_read": ("segue_kv_transfer_bytes", "KV bytes read from peers and verified."),
    "kv_bytes_announced": (
        "segue_kv_handoff_bytes",
        "KV bytes of prompts whose handoff was announced to its end.",
    ),
    "kv_bytes_overlapped": (
        "segue_kv_handoff_overlapped_bytes",
        "Of these, bytes that had arrived when the prompt's last chunk was computed.",
    ),
    "kv_events": ("segue_kv_events", "Events of KV blocks, where they are kept."),
    "credits_granted": ("segue_credits_granted", "Credits granted to prefill workers."),
    "credits_expired": (
        "segue_credits_expired",
        "Of these, taken back because their source had lost the lease or was gone.",
    ),
    "credit_wait_seconds": ("segue_credit_wait_seconds", "Time spent waiting by those granted."),
    "pauses": ("segue_sequence_pauses", "Sequences that gave up their KV for others."),
    "prefix_cache_queried_tokens": ("segue_prefix_cache_queries", "Context tokens looked up."),
    "prefix_cache_reused_tokens": ("segue_prefix_cache_hits", "Context tokens found."),
}
# Families with more labels, from names that begin with the prefix; both may be joined by slashes.
GAUGE_FAMILIES = {
    "kv_blocks_": ("segue_kv_blocks", "KV blocks by state.", "state"),
    "held_": ("segue_num_requests_held", "Sequences not admitted, by reason.", "reason"),
}
COUNTER_FAMILIES = {
    "kv_blocks_": ("segue_kv_block_events", "What happened to KV blocks, by kind.", "event"),
    "credits_refused_": (
        "segue_credits_refused",
        "Credits not granted, by reason; caller_gone: it was aborted or moved elsewhere.",
        "reason",
    ),
    "attempts_ended_": ("segue_attempts_ended", "Attempts by their end.", "outcome"),
    "defects_": (
        "segue_worker_defects",
        "Errors that nobody expected; they cost those that they struck, by where.",
        "where",
    ),
    "lease_": ("segue_kv_leases_ended", "Leases by how they ended.", "verdict"),
    "fence_": (
        "segue_fence_refusals",
        "Stale references that were refused, by what they were used for and what they were.",
        "use/kind",
    ),
}


class FleetMetrics:
    """`text` is what GET /metrics appends."""

    def __init__(self, model_name: str, links: WorkerLinks, journeys: JourneyCounters) -> None:
        self._model_name = model_name
        self._links = links
        self._journeys = journeys

    async def refreshed(self, view: FleetView) -> FleetView:
        """The view with every worker's own word of this moment, where it answers in time."""
        workers = await asyncio.gather(*(self._refresh(worker) for worker in view.workers))
        return replace(view, workers=tuple(workers))

    async def _refresh(self, worker: WorkerView) -> WorkerView:
        client = self._links.client(worker.identity)
        if client is None or worker.state is WorkerState.DEAD:
            return worker
        try:
            return replace(worker, status=await client.status(deadline_s=STATUS_SECONDS))
        except SegueError:
            return worker  # its last heartbeat stands

    async def text(self, view: FleetView) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Fleet(await self.refreshed(view), self._model_name, self._journeys))
        return generate_latest(registry)


class _Fleet(Collector):
    def __init__(self, view: FleetView, model_name: str, journeys: JourneyCounters) -> None:
        self._view = view
        self._model_name = model_name
        self._journeys = journeys

    def collect(self) -> Iterator[Metric]:
        yield from self._pools()
        living = [w for w in self._view.workers if w.state is not WorkerState.DEAD]
        yield from self._workers(living)
        yield from self._lives(self._view.workers)
        yield from self._journey()

    def _pools(self) -> Iterator[Metric]:
        desired = GaugeMetricFamily(
            "segue_pool_desired_replicas", "Workers the pool should have.", labels=("pool",)
        )
        ready = GaugeMetricFamily(
            "segue_pool_ready_replicas", "Workers that take requests.", labels=("pool",)
        )
        for pool in self._view.pools:
            desired.add_metric((pool.name,), pool.desired)
            ready.add_metric((pool.name,), pool.ready)
        yield desired
        yield ready

    def _workers(self, workers: Collection[WorkerView]) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, text in GAUGES.values():
            families[name] = GaugeMetricFamily(name, text, labels=LABELS)
        for name, text in COUNTERS.values():
            families[name] = CounterMetricFamily(name, text, labels=LABELS)
        for name, text, label in GAUGE_FAMILIES.values():
            families[name] = GaugeMetricFamily(name, text, labels=(*LABELS, label))
        for name, text, label in COUNTER_FAMILIES.values():
            families[name] = CounterMetricFamily(name, text, labels=(*LABELS, *label.split("/")))
        transport = GaugeMetricFamily(
            "segue_kv_transport_info", "What moves KV blocks.", labels=(*LABELS, "transport")
        )
        draining = GaugeMetricFamily(
            "segue_worker_draining", "1 while the worker takes nothing new.", labels=LABELS
        )
        for worker in workers:
            is_draining = worker.state is WorkerState.DRAINING
            draining.add_metric(self._labels(worker), float(is_draining))
            if worker.status is None:
                continue
            labels = self._labels(worker)
            transport.add_metric((*labels, worker.status.transport), 1)
            _add(families, labels, worker.status.gauges, GAUGES, GAUGE_FAMILIES)
            _add(families, labels, worker.status.counters, COUNTERS, COUNTER_FAMILIES)
        yield from families.values()
        yield transport
        yield draining
        yield from self._pairs(workers)

    def _labels(self, worker: WorkerView) -> tuple[str, str, str, str]:
        return self._model_name, worker.pool, worker.role, worker.identity.worker_id

    def _pairs(self, workers: Iterable[WorkerView]) -> Iterator[Metric]:
        names = ("model_name", "source_id", "reader_id", "transport")
        rate = GaugeMetricFamily(
            "segue_kv_pair_bytes_per_second",
            "How fast a pair of workers moved a pattern when it met.",
            labels=names,
        )
        usable = GaugeMetricFamily(
            "segue_kv_pair_usable",
            "1: KV goes from source to reader; 0: their preflight failed, or found a transport "
            "that transfer.require_transport does not allow.",
            labels=names,
        )
        for worker in workers:
            for pair in worker.status.pairs if worker.status is not None else ():
                reader = worker.identity.worker_id
                labels = (self._model_name, pair.source.worker_id, reader, pair.transport)
                usable.add_metric(labels, float(not pair.is_refused))
                if pair.gigabytes_per_second is not None:
                    rate.add_metric(labels, pair.gigabytes_per_second * 1e9)
        yield rate
        yield usable

    def _lives(self, workers: Iterable[WorkerView]) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "segue_worker_restarts", "Lives of a worker before the present one.", labels=LABELS
        )
        deaths = CounterMetricFamily(
            "segue_worker_deaths",
            "Lives of a worker that ended, by cause.",
            labels=(*LABELS, "cause"),
        )
        for worker in workers:
            labels = self._labels(worker)
            restarts.add_metric(labels, worker.restarts)
            for cause, count in worker.deaths.items():
                deaths.add_metric((*labels, cause.value), count)
        yield restarts
        yield deaths

    def _journey(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "segue_num_requests_unbound",
            "Requests at the gateway that wait for workers to come back, or to have room.",
            value=self._journeys.num_waiting(),
        )
        rungs = CounterMetricFamily(
            "segue_journey_attempts",
            "Attempts by rung of the ladder, and requests refused at its end.",
            labels=("rung",),
        )
        for rung, count in self._journeys.rungs.items():
            rungs.add_metric((rung,), count)
        yield rungs
        failures = CounterMetricFamily(
            "segue_journey_failures", "Attempts that failed, by kind.", labels=("kind",)
        )
        for kind, count in self._journeys.failures.items():
            failures.add_metric((kind,), count)
        yield failures
        migrations = CounterMetricFamily(
            "segue_migrations",
            "Running requests that were to move to another worker.",
            labels=("outcome",),
        )
        for outcome, count in self._journeys.migrations.items():
            migrations.add_metric((outcome,), count)
        yield migrations
        rebindings = CounterMetricFamily(
            "segue_rebindings",
            "Requests waiting for a credit that asked another decode worker, by outcome.",
            labels=("outcome",),
        )
        for outcome, count in self._journeys.rebindings.items():
            rebindings.add_metric((outcome,), count)
        yield rebindings
        yield CounterMetricFamily(
            "segue_journey_recovered",
            "Requests that finished after a failed attempt.",
            value=self._journeys.recovered,
        )


def _add(
    families: dict[str, GaugeMetricFamily | CounterMetricFamily],
    labels: tuple[str, ...],
    values: dict[str, float],
    plain: dict[str, tuple[str, str]],
    prefixed: dict[str, tuple[str, str, str]],
) -> None:
    for name, value in values.items():
        if name in plain:
            families[plain[name][0]].add_metric(labels, value)
            continue
        for prefix, (family, _, _) in prefixed.items():
            if name.startswith(prefix):
                more = name.removeprefix(prefix).split("/")
                families[family].add_metric((*labels, *more), value)
                break
