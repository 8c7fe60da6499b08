"""Cells of the fault matrix, played on whole deployments; `make faults` plays them all.

All are played at once, on a few fleets side by side, by whichever test comes first.
"""

import asyncio
from pathlib import Path

import pytest
from fault_cell import Outcome
from fault_course import run_course
from fault_matrix import Cell, Component, applicable_cells, pairwise
from shallow_model import write_shallow_model

NUM_LANES = 3
SELECTED = pairwise(c for c in applicable_cells() if c.component is not Component.RAY)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def outcomes(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Outcome]:
    model = write_shallow_model(bundled_model, tmp_path_factory.mktemp("shallow"))
    played = asyncio.run(run_course(SELECTED, model, NUM_LANES, lambda outcome: None))
    return {outcome.cell: outcome for outcome in played}


@pytest.mark.parametrize("cell", SELECTED, ids=str)
def test_cell(outcomes: dict[Cell, Outcome], cell: Cell) -> None:
    assert outcomes[cell].faults == (), outcomes[cell]
