"""What is done to a component, and how it is undone."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from fault_fleet import FaultFleet
from fault_matrix import OF_BLOCKS, STOP_S, WORKERS, Cell, Component, Fault
from fault_plan import last_sighting
from fault_scene import Scene
from network import Cut

NEXT_LIFE_SECONDS = 60.0
SPOILT_SECONDS = 0.5  # after it was told, a worker has damaged what it lends

Undo = Callable[[], Awaitable[None]]


async def strike(scene: Scene, cell: Cell) -> Undo:
    """Let go of the request and strike in the same moment. The result ends the fault."""
    fleet, fault = scene.fleet, cell.fault
    if fault is Fault.HANG_UP:
        scene.answer.hang_up()
        scene.let_go()
        return _nothing
    if fault in OF_BLOCKS:
        return await _spoil_blocks(scene, cell)
    if fault in (Fault.CUT_ONE_WAY, Fault.CUT_BOTH_WAYS):
        return _cut(scene, cell)
    place = fleet.place(cell.component)
    pid = fleet.pid(place)
    assert pid is not None
    if fault is Fault.SAME_ADDRESS:
        fleet.network.cut(place, Cut())  # its end is not heard of
        before = _listening(fleet, place)
        os.kill(pid, signal.SIGKILL)
        scene.let_go()
        return _when_its_next_life_listens(fleet, place, before)
    signum = {Fault.KILL: signal.SIGKILL, Fault.STOP: signal.SIGSTOP, Fault.TERM: signal.SIGTERM}
    os.kill(pid, signum[fault])
    scene.let_go()
    return _continue_later(pid) if fault is Fault.STOP else _nothing


async def _nothing() -> None:
    return None


def _continue_later(pid: int) -> Undo:
    async def go_on() -> None:
        await asyncio.sleep(STOP_S)
        with suppress(ProcessLookupError):  # it was replaced meanwhile
            os.kill(pid, signal.SIGCONT)

    task = asyncio.create_task(go_on())

    async def undo() -> None:
        await task

    return undo


async def _spoil_blocks(scene: Scene, cell: Cell) -> Undo:
    """At the source before they are read, or on their way."""
    at_source = cell.component is Component.PREFILL
    plan = scene.fleet.plans["prefill-0" if at_source else "decode-0"]
    if cell.fault is Fault.CORRUPTED_BLOCK and at_source:
        plan.change(spoil=plan.read().spoil + 1)
        await asyncio.sleep(SPOILT_SECONDS)
        scene.let_go()
    elif cell.fault is Fault.CORRUPTED_BLOCK:
        scene.let_go()
        plan.change(reads="corrupt")
    else:
        stall: dict[str, Any] = {"serves_readers": False} if at_source else {"reads": "stall"}
        plan.change(**stall)
        scene.let_go(keep=tuple(stall))

    async def undo() -> None:
        plan.clear()

    return undo


def _cut(scene: Scene, cell: Cell) -> Undo:
    """Reads between the workers stop with the rest, whichever of the two is cut off."""
    fleet = scene.fleet
    fleet.network.cut(fleet.place(cell.component), Cut(True, cell.fault is Fault.CUT_BOTH_WAYS))
    if cell.component in WORKERS:
        fleet.plans["decode-0"].change(reads="stall")
    scene.let_go(keep=("reads",) if cell.component in WORKERS else ())

    def heal() -> None:
        fleet.network.heal()
        fleet.plans["decode-0"].clear()

    if cell.component in WORKERS:  # others take over: it stays cut until the answer is there

        async def undo() -> None:
            heal()

        return undo
    later = asyncio.get_running_loop().call_later(STOP_S, heal)

    async def wait_healed() -> None:
        while not later.cancelled() and asyncio.get_running_loop().time() < later.when():
            await asyncio.sleep(0.05)
        heal()

    return wait_healed


def _listening(fleet: FaultFleet, place: str) -> object:
    if place == "controller":
        path = fleet.folder / "controller.address"
        return path.read_text(), path.stat().st_mtime_ns
    seen = last_sighting(fleet.folder, place)
    return seen and seen.incarnation


def _when_its_next_life_listens(fleet: FaultFleet, place: str, before: object) -> Undo:
    """Only then the old connections end: their peers find another life at the address."""

    async def replace() -> None:
        async with asyncio.timeout(NEXT_LIFE_SECONDS):
            while place in fleet.plans and _listening(fleet, place) == before:
                await asyncio.sleep(0.05)
        fleet.network.drop_connections(place)
        fleet.network.heal()

    task = asyncio.create_task(replace())

    async def undo() -> None:
        await task

    return undo
