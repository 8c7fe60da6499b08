"""The matrix itself: what cannot occur and why, which cells CI plays, how bounds are ordered."""

from itertools import combinations

import pytest
from fault_matrix import (
    CUTS,
    DEATH_S,
    OF_BLOCKS,
    SILENCE_S,
    STOP_S,
    Cell,
    Component,
    Fault,
    Stage,
    all_cells,
    applicable_cells,
    bound_s,
    may_fail,
    pairwise,
    reason_not_applicable,
)
from hypothesis import given
from hypothesis import strategies as st


def test_the_matrix_is_whole() -> None:
    cells = list(all_cells())
    assert len(cells) == len(set(cells)) == 5 * 9 * 6


@pytest.mark.parametrize(
    ("component", "fault", "stage", "reason"),
    [
        (Component.PREFILL, Fault.HANG_UP, Stage.STREAMING, "connected to the gateway only"),
        (Component.GATEWAY, Fault.HANG_UP, Stage.QUEUED, ""),
        (Component.DECODE, Fault.CORRUPTED_BLOCK, Stage.QUEUED, "is moved yet"),
        (Component.DECODE, Fault.CORRUPTED_BLOCK, Stage.TRANSFER, ""),
        (Component.PREFILL, Fault.STALLED_TRANSFER, Stage.STREAMING, "were verified"),
        (Component.PREFILL, Fault.CORRUPTED_BLOCK, Stage.PREFILLING, "own input"),
        (Component.DECODE, Fault.CORRUPTED_BLOCK, Stage.PREFILLING, ""),
        (Component.CONTROLLER, Fault.STALLED_TRANSFER, Stage.TRANSFER, "no block passes"),
        (Component.RAY, Fault.CUT_ONE_WAY, Stage.QUEUED, "the controller's"),
        (Component.RAY, Fault.SAME_ADDRESS, Stage.QUEUED, "another address"),
        (Component.RAY, Fault.KILL, Stage.QUEUED, ""),
    ],
)
def test_what_cannot_occur(component: Component, fault: Fault, stage: Stage, reason: str) -> None:
    told = reason_not_applicable(component, fault, stage)
    assert reason in told and bool(told) == bool(reason)


def test_no_component_fault_or_stage_is_left_out() -> None:
    """What is not applicable stays the lesser part, and never a whole row."""
    cells = applicable_cells()
    assert {c.component for c in cells} == set(Component)
    assert {c.fault for c in cells} == set(Fault)
    assert {c.stage for c in cells} == set(Stage)
    assert len(cells) > len(list(all_cells())) / 2
    deaths = {c for c in all_cells() if c.fault in (Fault.KILL, Fault.STOP, Fault.TERM)}
    assert deaths <= set(cells)


def test_bounds() -> None:
    assert bound_s(Component.DECODE, Fault.KILL) == DEATH_S
    assert all(bound_s(Component.PREFILL, fault) <= SILENCE_S for fault in Fault)
    assert all(bound_s(Component.CONTROLLER, fault) == DEATH_S for fault in Fault)
    for fault in (Fault.STOP, *CUTS):
        assert bound_s(Component.GATEWAY, fault) > STOP_S


def test_only_a_dead_gateway_excuses_an_error() -> None:
    excused = {(c, f) for c in Component for f in Fault if may_fail(c, f)}
    assert excused == {(Component.GATEWAY, f) for f in (Fault.KILL, Fault.SAME_ADDRESS)}


def pairs_of(cells: list[Cell]) -> set[tuple[object, object]]:
    values = ((c.component, c.fault, c.stage) for c in cells)
    return {pair for three in values for pair in combinations(three, 2)}


@given(st.sets(st.sampled_from(list(all_cells())), min_size=1))
def test_pairwise_leaves_no_pair_out(cells: set[Cell]) -> None:
    chosen = pairwise(cells)
    assert set(chosen) <= cells and len(chosen) == len(set(chosen))
    assert pairs_of(chosen) == pairs_of(list(cells))


def test_pairwise_is_small_and_repeatable() -> None:
    chosen = pairwise(applicable_cells())
    assert chosen == pairwise(reversed(applicable_cells()))
    faults_and_stages = {(c.fault, c.stage) for c in applicable_cells()}
    assert len(faults_and_stages) <= len(chosen) <= len(faults_and_stages) + 6
    assert not [c for c in chosen if c.fault in OF_BLOCKS and c.component is Component.RAY]
