"""The process around a worker that a launcher started remotely: a generic actor, free of Ray."""

import json
import logging
import os

from segue.cluster.errors import ConfigurationError, SegueError
from segue.cluster.worker_entry import StartFailure, TerminationSignal, WorkerEntry, load_entry

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class WorkerHost:
    """Three calls over Ray in a worker's whole life; its requests and tokens never pass here."""

    def __init__(self, entry: str, settings: str, host: str) -> None:
        """`host`: where the worker listens if its settings do not say. Imports nothing heavy, so
        that `pid` can be told while the worker itself is still being built."""
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        self._entry = entry
        fields = json.loads(settings)
        fields["host"] = fields.get("host") or host
        self._settings = json.dumps(fields)
        self._worker: WorkerEntry | None = None
        self._termination = TerminationSignal()  # here: an actor is built in the main thread

    def pid(self) -> int:
        return os.getpid()

    def start(self) -> StartFailure | None:
        """Return once the worker serves, or why it can not."""
        try:
            worker = load_entry(self._entry)(self._settings)
            self._termination.worker = worker
            worker.start()
        except Exception as error:  # whatever a model's code raises must reach `segue status`
            logging.getLogger(__name__).exception("the worker could not be started")
            told = isinstance(error, SegueError)
            reason = str(error) if told else f"{type(error).__name__}: {error}"
            return StartFailure(reason, isinstance(error, ConfigurationError))
        self._worker = worker
        return None

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
