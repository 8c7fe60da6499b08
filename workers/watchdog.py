"""Judges whether a worker makes progress, and names what does not: thread, step, line of code."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from segue.cluster.worker_status import WorkerCondition
from segue.kvtransfer.receiver import Receiver
from segue.workers.engine import Engine
from segue.workers.plan_recorder import PlanRecorder

MAX_NAMED = 3  # attempts of a step that are told by name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`stuck_seconds`: how long that which is stuck has not moved. READY without a cause: all is
    well."""

    condition: WorkerCondition = WorkerCondition.READY
    cause: str = ""
    stuck_seconds: float = 0.0


class Watchdog:
    """Asked by the heartbeat, from the event loop: that a loop hangs is told by its silence."""

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        stalled_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._receiver = receiver
        self._stalled_after_s = stalled_after_s
        self._clock = clock

    def diagnose(self) -> Diagnosis:
        engine, receiver = self._engine, self._receiver
        for name, pulse in (("engine", engine.pulse), ("transfer", receiver.pulse)):
            if pulse.has_ended:
                told = f": {pulse.fault}" if pulse.fault else ""
                return Diagnosis(WorkerCondition.FAILED, f"the {name} thread has ended{told}")
        if (stuck := engine.pulse.stuck_seconds) >= self._stalled_after_s:
            doing = last_step(engine.recorder, time.time())
            cause = f"the engine thread has not moved for {stuck:.0f} s; {doing}"
            return _stalled(f"{cause}; it is in {engine.pulse.standing()}", stuck)
        if (stuck := receiver.pulse.stuck_seconds) >= self._stalled_after_s:
            reads = f"{receiver.num_in_flight} reads in flight"
            cause = f"the transfer thread has not moved for {stuck:.0f} s; {reads}"
            return _stalled(f"{cause}; it is in {receiver.pulse.standing()}", stuck)
        if (stuck := self._idle_seconds()) >= self._stalled_after_s:
            return _stalled(f"no step for {stuck:.0f} s {self._why_idle()}", stuck)
        return Diagnosis()

    def _idle_seconds(self) -> float:
        """How long the engine goes round and round without a step, though it has work, or stands
        still before a queue that nothing will move."""
        engine, scheduler = self._engine, self._engine.scheduler
        if not engine.num_sequences or not (scheduler.has_work or scheduler.stands_still):
            return 0.0
        return max(0.0, self._clock() - engine.counters.last_progress)

    def _why_idle(self) -> str:
        scheduler = self._engine.scheduler
        if scheduler.has_work:
            return "although requests are admitted"
        waiting = scheduler.waiting.in_order()[:1]  # the engine's thread may have taken it
        named = [f"{s.attempt} ({scheduler.held.get(s.attempt, 'held')})" for s in waiting]
        return f"although {len(scheduler.waiting)} wait, {' '.join(named)} first, and nothing runs"


def _stalled(cause: str, seconds: float) -> Diagnosis:
    return Diagnosis(WorkerCondition.STALLED, cause, seconds)


def last_step(recorder: PlanRecorder, now: float) -> str:
    """What the newest step computes, if it has not ended; `now` in seconds since the epoch."""
    if recorder.unfinished is None:
        return "no step is under way"
    began, plan = recorder.unfinished
    parts = []
    if plan.context:
        named = [str(item.sequence.attempt) for item in plan.context[:MAX_NAMED]]
        others = len(plan.context) - len(named)
        tokens = sum(item.num_tokens for item in plan.context)
        more = f" and {others} more" if others else ""
        parts.append(f"{tokens} prompt tokens of {', '.join(named)}{more}")
    if plan.num_generation_tokens:
        parts.append(f"{plan.num_generation_tokens} tokens of answers")
    return f"its step began {now - began:.0f} s ago: {' and '.join(parts)}"
