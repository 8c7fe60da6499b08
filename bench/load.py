"""A closed loop of clients: each sends its next request when its last one has ended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

from segue.bench.measurement import Measurement

Send = Callable[[bytes, float], Awaitable[Measurement]]


@dataclass(frozen=True, slots=True)
class LevelRun:
    concurrency: int
    wall_s: float
    client_cpu_s: float  # of this process: near wall_s, the figures are the client's own
    measurements: tuple[Measurement, ...]


async def run_level(
    concurrency: int,
    bodies: Sequence[bytes],
    send: Send,
    on_end: Callable[[Measurement], None],
) -> LevelRun:
    """Send all `bodies`, `concurrency` at a time; `send` gets the level's start on its clock."""
    waiting = iter(bodies)
    measurements: list[Measurement] = []
    began, cpu_began = perf_counter(), process_time()

    async def client() -> None:
        for body in waiting:
            measurement = await send(body, began)
            measurements.append(measurement)
            on_end(measurement)

    async with asyncio.TaskGroup() as clients:
        for _ in range(min(concurrency, len(bodies))):
            clients.create_task(client())
    wall_s, cpu_s = perf_counter() - began, process_time() - cpu_began
    return LevelRun(concurrency, wall_s, cpu_s, tuple(measurements))
