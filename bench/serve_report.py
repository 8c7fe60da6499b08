"""Shows a serving benchmark: a table for people, a JSON document for programs."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from segue.bench.measurement import Measurement
from segue.bench.serve_bench import Progress, ServePlan, ServeResult
from segue.bench.summary import Distribution, LevelSummary, first_of_each_kind

SCHEMA = "segue.bench.serve"
SCHEMA_VERSION = 1
STATISTICS = ("mean", "p50", "p95", "p99")
BUSY_CLIENT = 0.7  # of one core; beyond it the event loop delays what it measures
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def figures_table(result: ServeResult) -> Table:
    """One row a level; the four statistics of each latency stand one under the other."""
    table = Table(box=box.SIMPLE, title=f"{result.model}: latencies in milliseconds")
    table.add_column("clients", justify="right")
    table.add_column("served", justify="right")
    for name in ("req/s", "output tok/s", "total tok/s"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name in ("TTFT", "ITL", "TPOT", "E2E"):
        table.add_column(name, justify="right")
    with_goodput = any(summary.good_requests is not None for summary in result.summaries)
    if with_goodput:
        table.add_column("goodput req/s", justify="right")
    for summary in result.summaries:
        cells = level_cells(summary)
        if with_goodput:
            cells.append(f"{summary.goodput_per_s or 0:.2f}")
        table.add_row(*cells)
    return table


def level_cells(summary: LevelSummary) -> list[str]:
    latencies = (summary.ttft, summary.itl, summary.tpot, summary.e2e)
    return [
        str(summary.concurrency),
        f"{summary.served}/{summary.requests}",
        f"{summary.requests_per_s:.2f}",
        f"{summary.output_tokens_per_s:.1f}",
        f"{summary.total_tokens_per_s:.1f}",
        "\n".join(STATISTICS),
        *(milliseconds(latency) for latency in latencies),
    ]


def milliseconds(latency: Distribution | None) -> str:
    if latency is None:
        return "\n".join("-" for _ in STATISTICS)
    return "\n".join(f"{getattr(latency, name) * 1e3:.2f}" for name in STATISTICS)


def failure_lines(result: ServeResult) -> list[str]:
    lines: list[str] = []
    for run in (result.warmup, *result.levels):
        if run is None:
            continue
        where = "warm-up" if run is result.warmup else f"concurrency {run.concurrency}"
        labels = [m.failure.label for m in run.measurements if m.failure is not None]
        for label, failure in first_of_each_kind(run.measurements).items():
            lines.append(f"{where}: {labels.count(label)} x {label}, first: {failure.detail}")
    return lines


def busy_client_lines(result: ServeResult) -> list[str]:
    shares = ((run.concurrency, run.client_cpu_s / run.wall_s) for run in result.levels)
    return [
        f"concurrency {concurrency}: this client used {share:.0%} of a core; "
        "the latencies are in part its own"
        for concurrency, share in shares
        if share > BUSY_CLIENT
    ]


def document(plan: ServePlan, result: ServeResult) -> dict[str, Any]:
    """Every figure. Neither the key nor the names of machines are in it."""
    arguments = asdict(plan)
    del arguments["api_key"], arguments["base_url"]
    arguments["tokenizer"] = plan.tokenizer.name if plan.tokenizer else None
    local = urlsplit(plan.base_url).hostname in LOOPBACK
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": result.model,
        "server": "same machine" if local else "another machine",
        "arguments": arguments,
        "environment": {
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
            "cpu_count": os.cpu_count(),
        },
        "summaries": [asdict(summary) for summary in result.summaries],
        "warmup": asdict(result.warmup) if result.warmup else None,
        "levels": [asdict(level) for level in result.levels],
    }


def to_json(plan: ServePlan, result: ServeResult) -> bytes:
    return orjson.dumps(document(plan, result), option=orjson.OPT_INDENT_2) + b"\n"


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """One bar for the level that runs; it is gone when the table comes."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal
    with Bars(*columns, console=console, transient=True, disable=hidden) as bars:
        task = bars.add_task("connecting", total=None, failed=0)
        failed = 0

        def begin(name: str, total: int) -> None:
            bars.reset(task, total=total, description=name)

        def end_request(measurement: Measurement) -> None:
            nonlocal failed
            failed += measurement.failure is not None
            bars.update(task, advance=1, failed=failed)

        yield Progress(begin, end_request)
