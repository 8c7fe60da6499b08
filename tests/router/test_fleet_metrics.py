"""What the fleet view becomes on the metrics page."""

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from segue.cluster.fleet import DeathCause, FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import WorkerStatus
from segue.router.fleet_metrics import FleetMetrics
from segue.router.journey import JourneyCounters
from segue.router.links import WorkerLinks

LABELS = {"model_name": "m", "pool": "decode", "role": "decode", "worker_id": "decode-0"}


async def samples_of(worker: WorkerView) -> Callable[..., float]:
    """Asks the page for the one sample of that name with these labels."""
    metrics = FleetMetrics("m", WorkerLinks("gateway", "token-of-this-test"), JourneyCounters())
    text = (await metrics.text(FleetView(workers=(worker,)))).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def value(name: str, **labels: str) -> float:
        (found,) = [s.value for s in samples if s.name == name and s.labels == LABELS | labels]
        return found

    return value


async def test_deaths_are_counted_by_cause_also_of_who_is_dead_now() -> None:
    identity = WorkerIdentity("decode-0", "life-4")
    deaths = {DeathCause.WEDGED: 2, DeathCause.EXITED: 1}
    worker = WorkerView(
        *(identity, "decode", "decode", WorkerState.DEAD), restarts=3, deaths=deaths
    )
    value = await samples_of(worker)
    assert value("segue_worker_restarts_total") == 3
    assert value("segue_worker_deaths_total", cause="wedged") == 2
    assert value("segue_worker_deaths_total", cause="exited") == 1


async def test_numbers_of_workers_have_their_place() -> None:
    identity = WorkerIdentity("decode-0", "life-1")
    status = WorkerStatus(
        identity,
        "decode",
        gauges={"event_loop_lag_seconds": 0.25, "kv_blocks_free": 7.0},
        counters={"kv_events": 12.0, "attempts_ended_stop": 3.0},
    )
    ready = WorkerView(identity, "decode", "decode", WorkerState.READY, status=status)
    value = await samples_of(ready)
    assert value("segue_worker_event_loop_lag_seconds") == 0.25
    assert value("segue_kv_blocks", state="free") == 7
    assert value("segue_kv_events_total") == 12
    assert value("segue_attempts_ended_total", outcome="stop") == 3


async def test_who_drains_and_what_was_moved() -> None:
    identity = WorkerIdentity("decode-0", "life-1")
    for state, expected in ((WorkerState.DRAINING, 1), (WorkerState.READY, 0)):
        value = await samples_of(WorkerView(identity, "decode", "decode", state))
        assert value("segue_worker_draining") == expected
    counters = JourneyCounters(num_waiting=lambda: 3)
    counters.migrations.update(moved=2, failed=1)
    metrics = FleetMetrics("m", WorkerLinks("gateway", "token-of-this-test"), counters)
    text = (await metrics.text(FleetView())).decode()
    assert 'segue_migrations_total{outcome="moved"} 2.0' in text
    assert 'segue_migrations_total{outcome="failed"} 1.0' in text
    assert "segue_num_requests_unbound 3.0" in text
