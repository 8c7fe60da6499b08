"""`segue schedule`: what the scheduler does with a described workload, without any model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from segue.deploy.schedule_scenario import load_scenario
from segue.deploy.user_errors import told_to_the_user
from segue.workers.scheduler.rehearsal import Iteration

TABLE_WIDTH = 180


def schedule(
    scenario: Annotated[Path, typer.Argument(help="YAML file that describes a workload")],
    last: Annotated[
        int | None, typer.Option(min=1, help="show only that many iterations, the last ones")
    ] = None,
) -> None:
    """Run the scheduler over a workload and show each step: who runs, who waits, and why."""
    console = Console()
    console = console if console.is_terminal else Console(width=TABLE_WIDTH)
    with told_to_the_user():
        described = load_scenario(scenario)
        if described.variants:
            console.print(escape(described.title), highlight=False)
        for each in described.each():
            iterations = list(each.run())
            shown = iterations[-last:] if last else iterations
            console.print(table(each.title, shown), highlight=False)


def table(title: str, iterations: list[Iteration]) -> Table:
    shown = Table(title=escape(title), title_justify="left")
    shown.add_column("it", justify="right")
    shown.add_column("packed batch (contexts; generations)", overflow="fold")
    shown.add_column("tokens", justify="right")
    for name in ("waiting (why)", "news", "first token", "ended"):
        shown.add_column(name, overflow="fold")
    shown.add_column("free blocks", justify="right")
    for iteration in iterations:
        shown.add_row(
            str(iteration.number),
            escape(packed(iteration)),
            str(iteration.num_tokens),
            ", ".join(f"{escape(name)} ({why})" for name, why in iteration.held.items()),
            ", ".join(f"{escape(name)} {what}" for name, what in _news(iteration)),
            escape(" ".join(iteration.first_tokens)),
            escape(" ".join(iteration.ended)),
            str(iteration.free_blocks),
        )
    return shown


def packed(iteration: Iteration) -> str:
    """`A C[0,16) B C[0,4); D E`: contexts with their positions, then generations."""
    contexts = [f"{name} C[{start},{end})" for name, (start, end) in iteration.context.items()]
    parts = (" ".join(contexts), " ".join(iteration.generation))
    landed = f" (landed: {' '.join(iteration.landed)})" if iteration.landed else ""
    return "; ".join(filter(None, parts)) + landed


def _news(iteration: Iteration) -> list[tuple[str, str]]:
    """Without what the column of those that wait says already."""
    waiting = {(name, why.value) for name, why in iteration.held.items()}
    return [(name, what) for name, what in iteration.news if (name, what) not in waiting]
