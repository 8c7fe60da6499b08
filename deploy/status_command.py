"""`segue status`: the gateway's fleet view as tables, or as JSON."""

from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from segue.cluster.errors import Unavailable
from segue.deploy.api_key import ApiKeyOption, chosen_api_key
from segue.deploy.gateway_address import PortOption, UrlOption, chosen_url
from segue.deploy.gateway_query import fetch
from segue.deploy.user_errors import told_to_the_user

NARROW, WIDE = 80, 180  # columns, where no terminal says how many it has
NOT_READY_EXIT = 1
SLOW_LOOP_SECONDS = 0.5
SHOWN_PAIRS = 40  # the refused ones first
_STYLES = {"ready": "green", "suspect": "yellow", "draining": "yellow", "dead": "red"}


def status(
    url: UrlOption = None,
    port: PortOption = None,
    api_key: ApiKeyOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="print the gateway's answer as JSON")
    ] = False,
    wide: Annotated[bool, typer.Option(help="all columns; else what fits 80 of them")] = False,
) -> None:
    """Show pools and workers of a running deployment. Exit code 1 if it is not ready."""
    with told_to_the_user():
        report = fetch_status(chosen_url(url, port), chosen_api_key(api_key))
    if json:
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=WIDE if wide else NARROW)
        for part in render(report, wide=wide):
            console.print(part, highlight=False)
    if not report["ready"]:
        raise typer.Exit(NOT_READY_EXIT)


def fetch_status(url: str, api_key: str | None) -> dict[str, Any]:
    """Raises Unavailable if nobody answers there as a Segue gateway does."""
    report = fetch(url, "/debug/status", api_key)
    if not {"ready", "pools", "workers"} <= report.keys():
        raise Unavailable(f"{url} is not a Segue gateway's")
    return report


def render(report: dict[str, Any], *, wide: bool = True) -> list[Table | str]:
    """Everything, or what fits 80 columns: then what explains a state is told below the tables."""
    headline = (
        "[green]ready[/]" if report["ready"] else f"[red]not ready[/]: {escape(report['reason'])}"
    )
    workers = report["workers"]
    parts: list[Table | str] = [headline, _pools(report["pools"])]
    parts.append(wide_workers(workers) if wide else narrow_workers(workers))
    for worker in workers:
        if not wide and (why := _why(worker)):
            parts.append(f"{worker['id']}: {escape(why)}")
        if told := credits_held(worker["gauges"]):
            parts.append(f"credits of {worker['id']}: {told}")
    if pairs := report.get("pairs"):
        shown = sorted(pairs, key=lambda pair: not pair["refusal"])[:SHOWN_PAIRS]
        parts.append(_pairs(shown, wide=wide))
        if (others := len(pairs) - SHOWN_PAIRS) > 0:
            parts.append(f"and {others} other pairs, which --json tells")
    if trouble := report.get("controller", {}).get("trouble"):
        age = report["controller"]["view_age_seconds"]
        parts.append(f"[yellow]controller not heard of for {age:.0f} s[/]: {escape(trouble)}")
    lag = report.get("gateway", {}).get("event_loop_lag_seconds", 0.0)
    if lag >= SLOW_LOOP_SECONDS:
        parts.append(f"[yellow]the gateway's event loop was late by {lag:.1f} s lately[/]")
    return parts


def _table(title: str, *columns: str) -> Table:
    return Table(
        *columns, title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )


def _pools(pools: list[dict[str, Any]]) -> Table:
    table = _table("Pools", "pool", "role", "ready", "desired", "reason")
    for pool in pools:
        table.add_row(
            pool["name"],
            pool["role"],
            str(pool["ready"]),
            str(pool["desired"]),
            escape(pool["reason"]),
        )
    return table


def narrow_workers(workers: list[dict[str, Any]]) -> Table:
    table = _table("Workers", "worker", "state", "since")
    for name in ("running", "waiting", "KV blocks", "moved"):
        table.add_column(name, justify="right")
    for worker in workers:
        gauges, counters = worker["gauges"], worker["counters"]
        table.add_row(
            *(worker["id"], _state(worker), duration(worker["state_seconds"])),
            _number(gauges, "running_requests"),
            _number(gauges, "waiting_requests"),
            _blocks_in_use(gauges),
            size(counters.get("kv_bytes_read")),
        )
    return table


def wide_workers(workers: list[dict[str, Any]]) -> Table:
    table = _table("Workers", "worker", "role", "state", "since", "pid")
    table.add_column("restarts", justify="right")
    for name in ("running", "waiting", "free", "cached", "owned", "leased", "landing", "total"):
        table.add_column(name, justify="right")
    for name in ("transport", "moved", "reason"):
        table.add_column(name)
    for worker in workers:
        gauges, counters = worker["gauges"], worker["counters"]
        table.add_row(
            *(worker["id"], worker["role"], _state(worker), duration(worker["state_seconds"])),
            str(worker["pid"] or ""),
            str(worker["restarts"]),
            _number(gauges, "running_requests"),
            _number(gauges, "waiting_requests"),
            *(
                _number(gauges, f"kv_blocks_{state}")
                for state in ("free", "cached", "owned", "leased", "landing", "total")
            ),
            worker["transport"] or "",
            size(counters.get("kv_bytes_read")),
            escape(_why(worker)),
        )
    return table


def _state(worker: dict[str, Any]) -> str:
    style = _STYLES.get(worker["state"], "")
    return f"[{style}]{worker['state']}[/]" if style else str(worker["state"])


def _blocks_in_use(gauges: dict[str, float]) -> str:
    """Blocks that are neither free nor only kept for reuse, of all."""
    if "kv_blocks_total" not in gauges:
        return ""
    total = gauges["kv_blocks_total"]
    idle = gauges.get("kv_blocks_free", 0.0) + gauges.get("kv_blocks_cached", 0.0)
    return f"{total - idle:.0f}/{total:.0f}"


def credits_held(gauges: dict[str, float]) -> str:
    """Of prompts on their way to this worker."""
    held, waiting = gauges.get("credits_held", 0.0), gauges.get("credits_waiting", 0.0)
    parts = [f"{held:.0f} held"] if held else []
    if waiting:
        oldest = duration(gauges.get("credit_oldest_wait_seconds", 0.0))
        left = duration(gauges.get("credit_next_deadline_seconds", 0.0))
        parts.append(f"{waiting:.0f} waiting, for up to {oldest}, the first gives up in {left}")
    return "; ".join(parts)


def _why(worker: dict[str, Any]) -> str:
    """Why it is in this state, or else how its last life ended."""
    reason, last_end = str(worker["reason"]), worker["last_end"]
    return reason or (f"last life: {last_end}" if last_end else "")


def _pairs(pairs: list[dict[str, Any]], *, wide: bool) -> Table:
    table = _table("Pairs", "KV from", "to", "transport")
    if wide:
        table.add_column("details")
    table.add_column("GB/s", justify="right")
    for name in ("checked", "verdict"):
        table.add_column(name)
    for pair in pairs:
        rate = pair["gigabytes_per_second"]
        assumed = "" if pair["measured"] or pair["transport"] == "unknown" else " (assumed)"
        table.add_row(
            pair["source"],
            pair["reader"],
            pair["transport"] + assumed,
            *((escape(pair["detail"]),) if wide else ()),
            "" if rate is None else f"{rate:.2f}",
            f"{duration(pair['seconds_ago'])} ago",
            f"[red]refused[/]: {escape(pair['refusal'])}" if pair["refusal"] else "[green]ok[/]",
        )
    return table


def _number(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.0f}" if name in values else ""


def duration(seconds: float) -> str:
    """At most two units: 42s, 3m10s, 5h2m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
