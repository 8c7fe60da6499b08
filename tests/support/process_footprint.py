"""What a process holds of the system: descriptors, threads, memory, read from /proc.

before = measure(pid)             # once it has warmed up
...                               # faults
await shrunk(pid, before)         # raises AssertionError that names what is left over
"""

import asyncio
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MEBIBYTE = 2**20
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_STATES = {"01": "established", "06": "time-wait", "08": "close-wait", "0A": "listening"}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Descriptors by kind ("socket", "pipe", "eventpoll" .. or "file"), threads by name.

    `details` say of descriptors what they are, for messages: files by path, sockets by their ends.
    """

    descriptors: Counter[str]
    threads: Counter[str]
    resident_bytes: int
    details: Counter[str]


@dataclass(frozen=True, slots=True)
class Slack:
    """Growth that is no leak: pools of threads that libraries fill as they please, caches."""

    descriptors: int = 0  # of any one kind
    threads: int = 2  # in all
    resident_bytes: int = 64 * MEBIBYTE


def measure(pid: int) -> Footprint:
    """Raises FileNotFoundError or ProcessLookupError if there is no such process."""
    ends = _socket_ends(pid)
    descriptors, details = Counter[str](), Counter[str]()
    for link in _links(pid):
        kind, detail = _described(link, ends)
        descriptors[kind] += 1
        details[detail] += 1
    pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    return Footprint(descriptors, _threads(pid), memory, details)


def growth(before: Footprint, after: Footprint, slack: Slack = Slack()) -> list[str]:
    """What `after` has more than `before` beyond the slack, in words; empty: no leak."""
    found = [
        f"{extra} more {kind} descriptors"
        for kind, extra in sorted((after.descriptors - before.descriptors).items())
        if extra > slack.descriptors
    ]
    if found:
        found.append(f"among them {_listed(after.details - before.details)}")
    extra = after.threads.total() - before.threads.total()
    if extra > slack.threads:
        found.append(f"{extra} more threads: {_listed(after.threads - before.threads)}")
    memory = after.resident_bytes - before.resident_bytes
    if memory > slack.resident_bytes:
        found.append(f"{memory / MEBIBYTE:.0f} MiB more memory")
    return found


async def shrunk(
    pid: int, before: Footprint, slack: Slack = Slack(), timeout_s: float = 20.0
) -> Footprint:
    """Wait until the process holds no more than before; what is left in the end is a leak."""
    end = time.monotonic() + timeout_s
    while left := growth(before, now := measure(pid), slack):
        assert time.monotonic() < end, f"process {pid} holds {'; '.join(left)}"
        await asyncio.sleep(0.1)
    return now


def _links(pid: int) -> list[str]:
    """What each descriptor points to. Those that close meanwhile are left out."""
    folder = PROC / str(pid) / "fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue
    return found


def _described(link: str, ends: dict[str, str]) -> tuple[str, str]:
    """Kind and detail of one descriptor."""
    if socket := _SOCKET.fullmatch(link):
        inode = socket.group(1)
        return "socket", ends.get(inode, "socket of another family")
    if link.startswith("/"):
        return "file", link
    kind = link.removeprefix("anon_inode:").strip("[]").partition(":")[0]
    return kind, kind


def _socket_ends(pid: int) -> dict[str, str]:
    """Both ends of each TCP socket that its network namespace has, by inode."""
    found = {}
    for family in ("tcp", "tcp6"):
        try:
            lines = (PROC / str(pid) / "net" / family).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            _, local, remote, state, *rest = line.split()
            ports = [int(end.rpartition(":")[2], 16) for end in (local, remote)]
            told = _STATES.get(state, f"state {state}")
            found[rest[5]] = f"socket :{ports[0]} -> :{ports[1]} {told}"
    return found


def _threads(pid: int) -> Counter[str]:
    found = Counter[str]()
    for task in (PROC / str(pid) / "task").iterdir():
        try:
            found[(task / "comm").read_text().strip()] += 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _listed(counts: Counter[str], most: int = 8) -> str:
    told = [f"{count} x {what}" if count > 1 else what for what, count in counts.most_common(most)]
    others = len(counts) - len(told)
    return ", ".join(told) + (f" and {others} others" if others else "")
