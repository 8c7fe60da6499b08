"""The network between Segue's processes: TCP proxies whose ways can be cut, one by one.

Each process listens behind a proxy; who dialled is found out from the kernel's tables. While a way
is cut nothing passes: no bytes, no end of a connection. What was sent meanwhile arrives when it is
healed, as TCP would repeat it.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READ_BYTES = 65536
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Cut:
    """Ways that let nothing pass. Both: the place is off the network."""

    out: bool = True
    into: bool = True


@dataclass(slots=True, eq=False)
class _Connection:
    dialler: str
    listener: str
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Network:
    """`pids` names the process at each place, as far as it runs now."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        self._pids = pids
        self._cuts: dict[str, Cut] = {}
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, place: str, target: Callable[[], str | None]) -> str:
        """Stand before `place`; `target` tells where it listens now. Returns our address."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._carry(place, target(), reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self, place: str, cut: Cut) -> None:
        self._cuts[place] = cut
        self._change()

    def heal(self) -> None:
        self._cuts.clear()
        self._change()

    def drop_connections(self, place: str) -> None:
        """End, without a goodbye, what still seems to lead to or from `place`."""
        for connection in list(self._connections):
            if place in (connection.dialler, connection.listener):
                connection.abort()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- connections -------------------------------------------------------------------------

    async def _carry(
        self,
        place: str,
        target: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        port = writer.get_extra_info("peername")[1]
        dialler = await asyncio.to_thread(place_of, port, self._pids())
        connection = _Connection(dialler, place, [writer])
        self._connections.add(connection)
        try:
            if target is None:
                return
            host, _, port = target.rpartition(":")
            async with asyncio.timeout(CONNECT_SECONDS):
                theirs, to_them = await asyncio.open_connection(host, int(port))
            connection.writers.append(to_them)
            here, there = connection.dialler, place
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(connection, reader, to_them, (here, there)))
                ways.create_task(self._pump(connection, theirs, writer, (there, here)))
        except (OSError, TimeoutError):
            pass  # nobody listens there now
        finally:
            connection.close()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: tuple[str, str],
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                await self._passable(way)
                writer.write(data)
                await writer.drain()
        await self._passable(way)  # an end is news too
        connection.close()

    async def _passable(self, way: tuple[str, str]) -> None:
        here, there = way
        while self._cuts.get(here, Cut(False, False)).out or (
            self._cuts.get(there, Cut(False, False)).into
        ):
            await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def place_of(port: int, pids: dict[str, int]) -> str:
    """Whose socket has this local port, found by its inode in the kernel's tables."""
    wanted = f":{port:04X}"
    inodes = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, Path(table).read_text().splitlines()[1:])
        if fields[1].endswith(wanted) and fields[9] != "0"
    }
    for place, pid in pids.items():
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{number}") in inodes:
                        return place
    return "elsewhere"
