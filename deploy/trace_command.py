"""`segue trace`: the last steps of a worker's engine as a table, or as a timeline for Perfetto."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from segue.cluster.errors import ConfigurationError, Unavailable
from segue.cluster.step_trace import StepReason, StepRecord, StepWork
from segue.deploy.api_key import ApiKeyOption, chosen_api_key
from segue.deploy.gateway_address import PortOption, UrlOption, chosen_url
from segue.deploy.gateway_query import fetch
from segue.deploy.perfetto import timeline
from segue.deploy.user_errors import told_to_the_user

TABLE_WIDTH = 180
SHOWN_IDS = 12  # leading characters of a request id


def trace(
    worker: Annotated[str, typer.Option(help="its id, as `segue status` shows it")],
    last: Annotated[int, typer.Option(min=1, max=4096, help="how many steps")] = 40,
    perfetto: Annotated[
        Path | None, typer.Option(help="write a timeline here instead of printing a table")
    ] = None,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: ApiKeyOption = None,
) -> None:
    """Show what a worker's scheduler did in its last steps, and why."""
    with told_to_the_user():
        body = fetch(
            chosen_url(url, port),
            "/debug/trace",
            chosen_api_key(api_key),
            worker=worker,
            last=last,
        )
        steps = read_steps(body)
        if perfetto is not None:
            _write(perfetto, orjson.dumps(timeline(worker, steps)))
            print(f"{len(steps)} steps of {worker} in {perfetto}")
            return
    console = Console()
    console = console if console.is_terminal else Console(width=TABLE_WIDTH)
    console.print(table(worker, steps), highlight=False)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def read_steps(body: dict[str, Any]) -> list[StepRecord]:
    """The gateway's JSON as records. Raises Unavailable if it is not what it should be."""
    try:
        return [
            StepRecord(
                step["number"],
                step["began"],
                step["ended"],
                tuple(StepWork(**work) for work in step["context"]),
                tuple(step["generation"]),
                tuple(StepReason(**reason) for reason in step["reasons"]),
                step["free_blocks"],
            )
            for step in body["steps"]
        ]
    except (KeyError, TypeError) as error:
        raise Unavailable(f"the gateway's trace can not be read: {error!r}") from error


def table(title: str, steps: list[StepRecord]) -> Table:
    shown = Table(title=title, title_justify="left")
    for name in ("step", "ms", "tokens", "free blocks"):
        shown.add_column(name, justify="right")
    for name in ("context", "generation", "reasons"):
        shown.add_column(name, overflow="fold")
    for step in steps:
        shown.add_row(
            str(step.number),
            f"{(step.ended - step.began) * 1e3:.1f}" if step.computes else "",
            str(step.num_tokens) if step.computes else "",
            str(step.free_blocks),
            " ".join(
                f"{_short(work.attempt)}[{work.start},{work.start + work.num_tokens})"
                for work in step.context
            ),
            _listed(step.generation),
            _reasons(step),
        )
    return shown


def _short(attempt: str) -> str:
    name, _, number = attempt.partition("#")
    return f"{name[:SHOWN_IDS]}#{number}" if number else name[:SHOWN_IDS]


def _listed(attempts: tuple[str, ...], limit: int = 6) -> str:
    text = " ".join(map(_short, attempts[:limit]))
    return text if len(attempts) <= limit else f"{text} and {len(attempts) - limit} more"


def _reasons(step: StepRecord) -> str:
    """One attempt by name; of several with the same reason, how many."""
    counts = Counter(reason.reason for reason in step.reasons)
    named = {reason.reason: _short(reason.attempt) for reason in step.reasons}
    return ", ".join(
        f"{reason}: {named[reason] if count == 1 else count}" for reason, count in counts.items()
    )
