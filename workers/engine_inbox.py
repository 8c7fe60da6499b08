"""What other threads want of the engine, until it obeys, and what they are told when it has."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

from segue.workers.sequence import Sequence

T = TypeVar("T")


class Command(NamedTuple):
    """`concerns`: the sequence that ends if `action` raises."""

    action: Callable[[], object]
    concerns: Sequence | None = None


class EngineInbox:
    """`post` and `call` are for other threads, the rest for the engine's own."""

    def __init__(self, wake: threading.Condition) -> None:
        self._wake = wake
        self._commands: deque[Command] = deque()
        self._answers: list[Callable[[], None]] = []  # of `call`, until they may be told

    def __len__(self) -> int:
        return len(self._commands)

    def post(self, action: Callable[[], object], concerns: Sequence | None = None) -> None:
        with self._wake:
            self._commands.append(Command(action, concerns))
            self._wake.notify()

    def call(self, action: Callable[[], T]) -> Future[T]:
        """Its result is told by `answers`, not when `action` returns."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # so that no waiter can cancel it

        def run() -> None:
            try:
                result = action()
            except Exception as error:
                self._answers.append(partial(future.set_exception, error))
            else:
                self._answers.append(partial(future.set_result, result))

        self.post(run)
        return future

    def commands(self) -> list[Command]:
        """All that have come; they are the caller's now."""
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def answers(self) -> list[Callable[[], None]]:
        """Each tells one caller the result of what was obeyed."""
        answers, self._answers = self._answers, []
        return answers
