"""Which gateways run on this machine: each `segue serve` leaves a note of its address."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import psutil

_FOLDER = "running"
_CLOCK_SLACK_S = 5.0  # between the start of a process and the file times of another clock


@contextmanager
def announced(url: str, cache: Path) -> Iterator[None]:
    """Until the block ends, commands of this user find the gateway. Costs at most the note."""
    note = cache / _FOLDER / f"{os.getpid()}.json"
    with suppress(OSError):  # a read-only home: commands need --url
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(".draft")
        draft.write_bytes(orjson.dumps({"url": url}))
        draft.replace(note)
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)


def newest_server(cache: Path) -> str | None:
    """The URL of the gateway that was started last and lives; notes of the dead are removed."""
    notes = [(_written(note), note) for note in (cache / _FOLDER).glob("*.json")]
    for written, note in sorted(notes, reverse=True):
        if not _lives(note.stem, written):
            with suppress(OSError):
                note.unlink(missing_ok=True)
            continue
        with suppress(OSError, ValueError, KeyError):
            return str(orjson.loads(note.read_bytes())["url"])
    return None


def _written(note: Path) -> float:
    try:
        return note.stat().st_mtime
    except OSError:  # it has just gone
        return 0.0


def _lives(pid: str, written: float) -> bool:
    """A process that began after the note was written has only got the same number."""
    try:
        return psutil.Process(int(pid)).create_time() <= written + _CLOCK_SLACK_S
    except (psutil.Error, ValueError):
        return False
