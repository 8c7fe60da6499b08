"""Plays cells of the fault matrix on a few fleets side by side, and prints the table of outcomes.

    python tests/support/fault_course.py [--lanes N] [--pairwise] [--only TEXT]...

The last line counts the cells: 'N passed, N failed, N not applicable'.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from answer_stream import MODEL_ID
from fault_cell import Outcome, play, undisturbed
from fault_fleet import FaultFleet, fault_fleet
from fault_matrix import (
    READ_TIMEOUT_S,
    Cell,
    Component,
    all_cells,
    applicable_cells,
    pairwise,
    reason_not_applicable,
)
from nursery import open_nursery
from ray_deployment import ray_fleet
from shallow_model import write_shallow_model

from segue.cluster.config.environment import cache_folder
from segue.cluster.config.file import parse_config
from segue.cluster.config.model import ModelConfig
from segue.workers.models.folder import resolve_model

ENGINE = {"enable_prefix_caching": False, "chunk_size": 64, "num_kv_blocks": 96, "max_num_seqs": 8}
CONFIG: dict[str, Any] = {
    "pools": {
        "prefill": {"role": "prefill", "engine": ENGINE},
        "decode": {"role": "decode", "engine": ENGINE},
    },
    "transfer": {"lease_s": 6, "read_timeout_s": READ_TIMEOUT_S, "credit_wait_s": 50},
    # A stopped worker is cut off by its links long before the controller would replace it.
    "control": {"dead_after_s": 40},
    "gateway": {
        "recovery": {"worker_wait_s": 60, "max_attempts": 6},
        "admission": {"request_timeout_s": 60},
    },
}

Report = Callable[[Outcome], None]


async def run_course(
    cells: Iterable[Cell], model: Path, num_lanes: int, report: Report
) -> list[Outcome]:
    """Play all `cells`; `report` hears of each when it is over. Those of Ray come last, alone."""
    queues = [deque[Cell](), deque[Cell]()]
    for cell in cells:
        queues[cell.component is Component.RAY].append(cell)
    outcomes: list[Outcome] = []
    config = {**CONFIG, "model": {"path": str(model), "id": MODEL_ID}}

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    with tempfile.TemporaryDirectory(prefix="segue-") as root:
        plain, of_ray = queues
        if plain:
            async with open_nursery(Path(root)) as nursery, asyncio.TaskGroup() as lanes:

                def on_nursery(folder: Path) -> AbstractAsyncContextManager[FaultFleet]:
                    return fault_fleet(nursery, parse_config(config), model, folder)

                for _ in range(min(num_lanes, len(plain))):
                    lanes.create_task(_lane(plain, on_nursery, note))
        if of_ray:
            await _lane(of_ray, lambda folder: ray_fleet(config, folder), note)
    return outcomes


async def _lane(
    queue: deque[Cell],
    open_fleet: Callable[[Path], AbstractAsyncContextManager[FaultFleet]],
    report: Report,
) -> None:
    """A fleet serves cell after cell; after one that failed it is replaced."""
    while queue:
        with tempfile.TemporaryDirectory(prefix="segue-") as folder:
            async with open_fleet(Path(folder)) as fleet:
                expected = await undisturbed(fleet)
                passed = True
                while queue and passed:
                    outcome = await play(fleet, queue.popleft(), expected)
                    report(outcome)
                    passed = outcome.passed


def line(outcome: Outcome) -> str:
    cell, verdict = outcome.cell, "passed" if outcome.passed else "FAILED"
    measured = f"{outcome.seconds:5.1f} s of {outcome.bound:4.1f}"
    columns = f"{cell.component:<11}{cell.fault:<18}{cell.stage:<19}{verdict}  {measured}"
    return "  ".join([columns, outcome.told, *outcome.faults])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--pairwise", action="store_true", help="the selection that CI plays")
    parser.add_argument("--only", action="append", default=[], help="cells whose name holds TEXT")
    parser.add_argument("--shallow", action="store_true", help="two layers of the model")
    options = parser.parse_args(arguments)
    cells = [
        cell
        for cell in (pairwise(applicable_cells()) if options.pairwise else applicable_cells())
        if all(text in str(cell) for text in options.only)
    ]
    began = time.monotonic()
    whole = resolve_model(ModelConfig(), cache_folder())  # pyright: ignore[reportCallIssue]
    with tempfile.TemporaryDirectory() as folder:
        model = write_shallow_model(whole, Path(folder)) if options.shallow else whole
        outcomes = asyncio.run(
            run_course(cells, model, options.lanes, lambda o: print(line(o), flush=True))
        )
    absent = 0
    for cell in all_cells():
        if reason := reason_not_applicable(cell.component, cell.fault, cell.stage):
            absent += 1
            print(f"{cell.component:<11}{cell.fault:<18}{cell.stage:<19}not applicable: {reason}")
    failed = sum(not outcome.passed for outcome in outcomes)
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{len(outcomes) - failed} passed, {failed} failed, {absent} not applicable")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
