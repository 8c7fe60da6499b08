"""Recorded steps as a table and as a timeline."""

import json
from pathlib import Path

import httpx
import pytest
from engine_parts import make_scheduler, make_sequence
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from segue.cluster.rpc import codec, serving_pb2
from segue.cluster.step_trace import StepReason, StepRecord, StepWork
from segue.deploy.launch import app
from segue.deploy.perfetto import timeline
from segue.deploy.trace_command import read_steps, table
from segue.workers.plan_recorder import PlanRecorder

STEPS = [
    StepRecord(
        7,
        100.0,
        100.25,
        (StepWork("aaaaaaaaaaaa#1", 0, 128), StepWork("bbbb#2", 128, 20)),
        ("cccc#1", "dddd#1"),
        (StepReason("aaaaaaaaaaaa#1", "chunked"), StepReason("eeee#1", "no_blocks")),
        42,
    ),
    StepRecord(8, 100.25, 100.3, (), ("cccc#1",), (), 41),
    StepRecord(9, 100.5, 100.5, (), (), (StepReason("ffff#1", "waiting_for_credit"),), 43),
]

records = st.builds(
    StepRecord,
    st.integers(1, 2**40),
    st.floats(0, 1e10),
    st.floats(0, 1e10),
    st.lists(
        st.builds(StepWork, st.text("ab#1", min_size=1), st.integers(0, 9), st.integers(1, 9)),
        max_size=3,
    ).map(tuple),
    st.lists(st.text("cd#2", min_size=1), max_size=3).map(tuple),
    st.lists(
        st.builds(StepReason, st.text("ef", min_size=1), st.text("gh", min_size=1)), max_size=2
    ).map(tuple),
    st.integers(0, 99),
)


@given(records)
def test_a_step_crosses_the_wire_unchanged(step: StepRecord) -> None:
    wire = codec.step_to_pb(step).SerializeToString()
    assert codec.step_from_pb(serving_pb2.StepRecord.FromString(wire)) == step


def test_the_recorder_keeps_the_plan_as_it_was() -> None:
    scheduler = make_scheduler(max_tokens=9, chunk=8)
    sequence = make_sequence("r", range(20), 2)
    scheduler.add(sequence)
    recorder = PlanRecorder(2)
    for _ in range(3):
        plan = scheduler.schedule()
        recorder.record(plan, 1.0, 2.0, scheduler.cache.pool.num_available)
        sequence.num_computed = plan.context[0].end
    first, second = recorder.last(10)
    assert (first.number, second.number) == (2, 3), "only the newest two are kept"
    assert first.context == (StepWork("r#1", 8, 8),)
    assert first.reasons == (StepReason("r#1", "chunked"),)
    assert [step.number for step in recorder.last(1)] == [3]
    with pytest.raises(ValueError, match="num_steps"):
        PlanRecorder(-1)


def test_the_table_says_who_ran_and_why_not() -> None:
    console = Console(width=160, record=True)
    console.print(table("prefill-0", STEPS))
    text = console.export_text()
    for part in ("prefill-0", "250.0", "150", "aaaaaaaa#1[0,128)", "bbbb#2[128,148)", "no_blocks"):
        assert part in text
    (idle,) = [line for line in text.splitlines() if "waiting_for_credit: ffff#1" in line]
    assert "0.0" not in idle and " 43 " in idle


def test_the_timeline_has_a_track_for_each_request() -> None:
    events = json.loads(json.dumps(timeline("prefill-0", STEPS)))["traceEvents"]
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    running = {"aaaaaaaaaaaa#1", "bbbb#2", "cccc#1", "dddd#1"}
    assert set(tracks) == {"steps", "eeee#1", "ffff#1"} | running
    slices = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in slices if e["tid"] == tracks["steps"]] == ["step 7", "step 8"]
    assert len([e for e in slices if e["tid"] == tracks["cccc#1"]]) == 2
    assert all(e["dur"] >= 0 for e in slices)
    assert slices[0]["ts"] == 100.0 * 1e6
    instants = {(e["tid"], e["name"], e["ts"]) for e in events if e["ph"] == "i"}
    assert instants == {
        (tracks["aaaaaaaaaaaa#1"], "chunked", 100.0 * 1e6),
        (tracks["eeee#1"], "no_blocks", 100.0 * 1e6),
        (tracks["ffff#1"], "waiting_for_credit", 100.5 * 1e6),
        (tracks["steps"], "step 9", 100.5 * 1e6),
    }


def as_json() -> dict[str, object]:
    return {
        "worker": "prefill-0",
        "steps": [
            {
                "number": s.number,
                "began": s.began,
                "ended": s.ended,
                "context": [
                    {"attempt": w.attempt, "start": w.start, "num_tokens": w.num_tokens}
                    for w in s.context
                ],
                "generation": list(s.generation),
                "reasons": [{"attempt": r.attempt, "reason": r.reason} for r in s.reasons],
                "free_blocks": s.free_blocks,
            }
            for s in STEPS
        ],
    }


def test_what_the_gateway_sends_is_read_back() -> None:
    assert read_steps(as_json()) == STEPS


def test_the_command_writes_a_timeline_and_tells_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(
        [
            httpx.Response(200, json=as_json()),
            httpx.Response(400, json={"error": {"message": "no worker is called 'x'"}}),
        ]
    )
    monkeypatch.setattr(httpx, "request", lambda *_, **__: next(answers))
    target = tmp_path / "steps.json"
    done = CliRunner().invoke(app, ["trace", "--worker", "prefill-0", "--perfetto", str(target)])
    assert done.exit_code == 0 and "3 steps" in done.output
    assert json.loads(target.read_bytes())["traceEvents"]
    refused = CliRunner().invoke(app, ["trace", "--worker", "x"])
    assert refused.exit_code == 2
