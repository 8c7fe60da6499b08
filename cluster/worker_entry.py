"""What a worker process runs: the class that an entry names, started with its settings.

As a program (`python -m segue.cluster.worker_entry module:Class`) it reads the settings from the
first line of its standard input and stops when that input ends: so it never outlives its parent.
SIGTERM makes it drain, a second one ends it at once. If it can not work as it is configured it ends
with CONFIGURATION_EXIT and one line: nobody should start it again and hope.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from segue.cluster.errors import ConfigurationError

CONFIGURATION_EXIT = os.EX_CONFIG


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a worker can not serve, in one line. `is_final`: another start would end the same."""

    reason: str
    is_final: bool


class WorkerEntry(Protocol):
    """A worker; built with its settings (JSON of segue.cluster.launcher.WorkerSettings)."""

    def start(self) -> None:
        """Return once it serves; it goes on in threads of its own. Raises ConfigurationError if
        no start could succeed."""
        ...

    def drain(self, reason: str) -> None:
        """Take nothing new, and end the process once everything is done: at once, if it does not
        serve yet. Does not wait."""
        ...

    def stop(self) -> None:
        """End within seconds, finishing what can be finished."""
        ...


def load_entry(entry: str) -> Callable[[str], WorkerEntry]:
    """Import "module:Class"."""
    module_name, _, class_name = entry.partition(":")
    if not module_name or not class_name:
        raise ConfigurationError(f"worker entry '{entry}' is not of the form module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"worker entry '{entry}': {error}") from error
    return cast(Callable[[str], WorkerEntry], found)


class TerminationSignal:
    """What SIGTERM does to a worker's process. Built in the main thread, as Python demands."""

    def __init__(self) -> None:
        self.worker: WorkerEntry | None = None  # set once it is built
        self._seen = False
        signal.signal(signal.SIGTERM, self._obey)

    def _obey(self, signum: int, frame: object) -> None:
        if self.worker is None or self._seen:
            os._exit(128 + signum)
        self._seen = True
        self.worker.drain("SIGTERM")


def main() -> None:
    settings = sys.stdin.readline()
    termination = TerminationSignal()
    try:
        worker = load_entry(sys.argv[1])(settings)
        termination.worker = worker
        worker.start()
    except ConfigurationError as error:
        print(error.message, file=sys.stderr)
        sys.exit(CONFIGURATION_EXIT)
    sys.stdin.read()
    worker.stop()


if __name__ == "__main__":
    main()
