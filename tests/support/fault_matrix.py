"""The fault matrix, pure: which component meets which fault at which stage, and what must follow.

A cell that cannot occur has a reason. `pairwise` selects cells in which every pair of values that
occurs in any cell occurs too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, product


class Component(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    GATEWAY = "gateway"  # and its connections to the workers
    CONTROLLER = "controller"
    RAY = "ray actor"  # the controller as an actor that Ray starts again


class Fault(StrEnum):
    KILL = "SIGKILL"
    STOP = "SIGSTOP, continue"
    TERM = "SIGTERM"
    CUT_ONE_WAY = "cut one way"  # what the component says is lost
    CUT_BOTH_WAYS = "cut both ways"
    STALLED_TRANSFER = "stalled transfer"
    CORRUPTED_BLOCK = "corrupted block"
    SAME_ADDRESS = "same address"  # killed without a goodbye; its next life answers there
    HANG_UP = "client hangs up"


class Stage(StrEnum):
    QUEUED = "queued"
    CREDIT = "waiting for credit"
    PREFILLING = "prefilling"
    TRANSFER = "mid-transfer"
    BEFORE_RELEASE = "before release"  # its blocks are read and verified
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Cell:
    component: Component
    fault: Fault
    stage: Stage

    def __str__(self) -> str:
        return f"{self.component} / {self.fault} / {self.stage}"

    @property
    def pairs(self) -> frozenset[tuple[StrEnum, StrEnum]]:
        return frozenset(combinations((self.component, self.fault, self.stage), 2))


CUTS = (Fault.CUT_ONE_WAY, Fault.CUT_BOTH_WAYS)
OF_BLOCKS = (Fault.STALLED_TRANSFER, Fault.CORRUPTED_BLOCK)
WORKERS = (Component.PREFILL, Component.DECODE)

STOP_S = 10.0  # how long a process stays stopped; a gateway's cut lasts as long
DEATH_S = 5.0
SILENCE_S = 10.0  # keepalive finds a silent peer after 4.5 s; then the prompt is read again
READ_TIMEOUT_S = 3.0  # of the fleets that are tested


def reason_not_applicable(component: Component, fault: Fault, stage: Stage) -> str:
    """Why this cannot occur; empty if it can."""
    if fault is Fault.HANG_UP and component is not Component.GATEWAY:
        return "a client is connected to the gateway only: see its rows"
    if fault in OF_BLOCKS:
        if component not in WORKERS:
            return "no block passes here"
        if stage in (Stage.QUEUED, Stage.CREDIT):
            return "no block of the request is moved yet"
        if stage in (Stage.BEFORE_RELEASE, Stage.STREAMING):
            return "all blocks of the request have arrived and were verified"
        if (component, fault, stage) == (
            Component.PREFILL,
            Fault.CORRUPTED_BLOCK,
            Stage.PREFILLING,
        ):
            return "the blocks are still the source's own input: no fault of a transfer"
    if component is Component.RAY and fault in CUTS:
        return "the connections are the controller's: see its rows"
    if component is Component.RAY and fault is Fault.SAME_ADDRESS:
        return "Ray starts an actor again at another address"
    return ""


def all_cells() -> Iterator[Cell]:
    return (Cell(*values) for values in product(Component, Fault, Stage))


def applicable_cells() -> list[Cell]:
    return [c for c in all_cells() if not reason_not_applicable(c.component, c.fault, c.stage)]


def bound_s(component: Component, fault: Fault) -> float:
    """The longest the client may wait for the next token or an error, recomputing not counted."""
    if component is Component.GATEWAY and fault in (Fault.STOP, *CUTS):
        return STOP_S + SILENCE_S  # whoever could tell the client is itself away
    if component not in WORKERS:
        return DEATH_S
    if fault in (Fault.STOP, Fault.SAME_ADDRESS, *CUTS):
        return SILENCE_S
    if fault is Fault.STALLED_TRANSFER:
        return READ_TIMEOUT_S + DEATH_S
    return DEATH_S


def may_fail(component: Component, fault: Fault) -> bool:
    """Whether a clear error is an outcome: the client's own connection dies with its gateway."""
    return component is Component.GATEWAY and fault in (Fault.KILL, Fault.SAME_ADDRESS)


def pairwise(cells: Iterable[Cell]) -> list[Cell]:
    """Few of `cells` that hold every pair of values that any of them holds. Deterministic."""
    order = {cell: place for place, cell in enumerate(all_cells())}
    left = sorted(cells, key=order.__getitem__)
    missing = {pair for cell in left for pair in cell.pairs}
    chosen: list[Cell] = []
    while missing:
        best = max(left, key=lambda cell: len(cell.pairs & missing))
        chosen.append(best)
        left.remove(best)
        missing -= best.pairs
    return chosen
