"""Whether a thread that works in rounds still moves, how it ended, and where it stands."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)

OURS = "segue."


class ThreadPulse:
    """Written by the thread, read by any. The thread runs `with pulse:` around all its rounds, and
    calls `begin` when one begins and `rest` before it waits for work. An error that would end the
    thread is kept here as its fault: its owner must look.
    """

    def __init__(
        self, thread: threading.Thread, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fault = ""
        self._thread = thread
        self._clock = clock
        self._began: float | None = None  # the present round; None: it waits for work

    def begin(self) -> None:
        self._began = self._clock()

    def rest(self) -> None:
        self._began = None

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.rest()
        if error is None:
            return False
        logger.error("the %s thread has ended", self._thread.name, exc_info=error)
        self.fault = f"{type(error).__name__}: {error}"[:300]
        return True

    @property
    def has_ended(self) -> bool:
        """False before it was started."""
        return bool(self.fault) or (self._thread.ident is not None and not self._thread.is_alive())

    @property
    def stuck_seconds(self) -> float:
        """How long the present round has taken."""
        began = self._began
        return 0.0 if began is None else max(0.0, self._clock() - began)

    def standing(self) -> str:
        """What it executes at this moment, and the nearest line of ours above that."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "nowhere"
        inner, above = frame, frame
        while not _module(above).startswith(OURS) and above.f_back is not None:
            above = above.f_back
        if inner is above or not _module(above).startswith(OURS):
            return _place(inner)
        return f"{_place(inner)} called by {_place(above)}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _place(frame: FrameType) -> str:
    return f"{_module(frame)}.{frame.f_code.co_qualname} line {frame.f_lineno}"
