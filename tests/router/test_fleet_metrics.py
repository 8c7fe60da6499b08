"""What the fleet view becomes on the metrics page."""

from segue.cluster.fleet import DeathCause, FleetView, WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import WorkerStatus
from segue.router.fleet_metrics import FleetMetrics
from segue.router.journey import JourneyCounters
from segue.router.links import WorkerLinks

LABELS = 'model_name="m",pool="decode",role="decode",worker_id="decode-0"'


async def page(worker: WorkerView) -> str:
    metrics = FleetMetrics("m", WorkerLinks("gateway", "token-of-this-test"), JourneyCounters())
    return (await metrics.text(FleetView(workers=(worker,)))).decode()


async def test_deaths_are_counted_by_cause_also_of_who_is_dead_now() -> None:
    identity = WorkerIdentity("decode-0", "life-4")
    deaths = {DeathCause.WEDGED: 2, DeathCause.EXITED: 1}
    worker = WorkerView(
        *(identity, "decode", "decode", WorkerState.DEAD), restarts=3, deaths=deaths
    )
    text = await page(worker)
    assert f"segue_worker_restarts_total{{{LABELS}}} 3.0" in text
    assert f'segue_worker_deaths_total{{cause="wedged",{LABELS}}} 2.0' in text
    assert f'segue_worker_deaths_total{{cause="exited",{LABELS}}} 1.0' in text


async def test_numbers_of_workers_have_their_place() -> None:
    identity = WorkerIdentity("decode-0", "life-1")
    status = WorkerStatus(
        identity,
        "decode",
        gauges={"event_loop_lag_seconds": 0.25, "kv_blocks_free": 7.0},
        counters={"kv_events": 12.0, "attempts_ended_stop": 3.0},
    )
    text = await page(WorkerView(identity, "decode", "decode", WorkerState.READY, status=status))
    assert f"segue_worker_event_loop_lag_seconds{{{LABELS}}} 0.25" in text
    assert f'segue_kv_blocks{{{LABELS},state="free"}} 7.0' in text
    assert f"segue_kv_events_total{{{LABELS}}} 12.0" in text
    assert f'segue_attempts_ended_total{{{LABELS},outcome="stop"}} 3.0' in text
