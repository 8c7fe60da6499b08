"""Engine steps as a timeline in the Trace Event Format, which Perfetto and Chrome open."""

from collections.abc import Iterable
from typing import Any

from segue.cluster.step_trace import StepRecord

STEPS_TRACK = 0  # thread id of the engine's own track; requests follow


def timeline(worker: str, steps: Iterable[StepRecord]) -> dict[str, Any]:
    """One process for the worker: a track of steps, a track for each request, two counters.

    What was decided about a request, and why it waits, are instants on its track.
    """
    events: list[dict[str, Any]] = [_name("process_name", worker), _name("thread_name", "steps")]
    tracks: dict[str, int] = {}
    for step in steps:
        title, arguments = f"step {step.number}", _arguments(step)
        if step.computes:
            events.append(_slice(step, STEPS_TRACK, title, arguments))
        else:
            events.append(_instant(step, STEPS_TRACK, title, arguments))
        for reason in step.reasons:
            track = _track(tracks, events, reason.attempt)
            events.append(_instant(step, track, reason.reason, {"step": step.number}))
        for work in step.context:
            span = f"context [{work.start}, {work.start + work.num_tokens})"
            track = _track(tracks, events, work.attempt)
            events.append(_slice(step, track, span, {"tokens": work.num_tokens}))
        for attempt in step.generation:
            events.append(_slice(step, _track(tracks, events, attempt), "generation", {}))
        counters = {"tokens": step.num_tokens, "generations": len(step.generation)}
        events.append(_counter(step, "packed", counters))
        events.append(_counter(step, "blocks", {"available": step.free_blocks}))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _arguments(step: StepRecord) -> dict[str, Any]:
    return {
        "tokens": step.num_tokens,
        "reasons": {reason.attempt: reason.reason for reason in step.reasons},
    }


def _track(tracks: dict[str, int], events: list[dict[str, Any]], attempt: str) -> int:
    if attempt not in tracks:
        tracks[attempt] = len(tracks) + 1
        events.append(_name("thread_name", attempt, tracks[attempt]))
    return tracks[attempt]


def _name(kind: str, text: str, track: int = STEPS_TRACK) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": text}}


def _slice(step: StepRecord, track: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": track,
        "ts": step.began * 1e6,
        "dur": (step.ended - step.began) * 1e6,
        "args": arguments,
    }


def _instant(step: StepRecord, track: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    place = {"pid": 1, "tid": track, "ts": step.began * 1e6}
    return {"ph": "i", "s": "t", "name": name, **place, "args": arguments}


def _counter(step: StepRecord, name: str, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 1, "ts": step.began * 1e6, "args": values}
