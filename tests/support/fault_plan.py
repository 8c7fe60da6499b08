"""What shall go wrong in one worker process now: a small file that a test writes, it obeys."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from segue.cluster.identity import WorkerIdentity

FOLDER_VARIABLE = "SEGUE_TEST_FAULTS"  # read by faulty_worker.py, set by whoever starts it


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Nothing goes wrong by default. `held`, `twice`, `unanswered`: names of WorkerApi's calls."""

    step_s: float = 0.0  # every engine step takes so much longer
    reads: Literal["", "stall", "fail", "corrupt"] = ""
    read_delay_s: float = 0.0
    serves_readers: bool = True  # False: peers' reads from here do not advance
    spoil: int = 0  # whenever it grows, what is leased is damaged in memory, once
    held: tuple[str, ...] = ()  # wait before they are served, for as long as they are named
    twice: tuple[str, ...] = ()  # are served twice; the second answer is lost
    unanswered: tuple[str, ...] = ()  # are served, and the answer is lost


class PlanFile:
    """Reading costs one `stat` unless the plan has changed."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self._path = folder / f"{worker_id}.plan"
        self._stamp = (0, 0)  # time and inode: times alone are only some ms fine
        self._plan = FaultPlan()

    def read(self) -> FaultPlan:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return self._plan
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if stamp != self._stamp:
            fields = json.loads(self._path.read_text())
            lists = {name: tuple(fields[name]) for name in ("held", "twice", "unanswered")}
            self._plan, self._stamp = FaultPlan(**{**fields, **lists}), stamp
        return self._plan

    def change(self, **changes: Any) -> None:
        _write(self._path, asdict(replace(self.read(), **changes)))
        self._stamp = (0, 0)

    def clear(self, keep: Iterable[str] = ()) -> None:
        """Nothing goes wrong any more but what `keep` names, and that without a gap."""
        plan = self.read()
        kept = {name: getattr(plan, name) for name in ("spoil", *keep)}
        _write(self._path, asdict(FaultPlan(**kept)))
        self._stamp = (0, 0)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a worker process tells of itself: where it really listens, and which calls it holds."""

    incarnation: str
    pid: int
    address: str
    held: tuple[str, ...] = ()


def report_sighting(folder: Path, identity: WorkerIdentity, sighting: Sighting) -> None:
    _write(folder / f"{identity.worker_id}.seen", asdict(sighting))


def last_sighting(folder: Path, worker_id: str) -> Sighting | None:
    try:
        fields = json.loads((folder / f"{worker_id}.seen").read_text())
    except FileNotFoundError:
        return None
    return Sighting(**{**fields, "held": tuple(fields["held"])})


def _write(path: Path, fields: dict[str, Any]) -> None:
    """At once or not at all."""
    draft = path.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(json.dumps(fields))
    draft.replace(path)
