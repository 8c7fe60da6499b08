"""`segue migrate` and `segue drain`: what they ask, what they print, how they fail."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from segue.deploy import drain_command
from segue.deploy.drain_command import account
from segue.deploy.launch import app

DONE = {
    "request": "abc-0",
    "from": "decode-0",
    "to": "decode-1",
    "pause_ms": 45.6,
    "tokens": 300,
    "blocks": 19,
    "bytes": 2**21,
    "blocks_while_stopped": 2,
    "stopped_ms": 12.3,
}
Asked = list[tuple[str, str, dict[str, Any] | None, dict[str, str]]]
Play = Callable[..., Asked]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """A gateway that gives these answers in turn."""

    def start(*answers: httpx.Response) -> Asked:
        asked: Asked = []
        coming: Iterator[httpx.Response] = iter(answers)

        def request(method: str, url: str, **options: Any) -> httpx.Response:
            asked.append((method, url, options.get("json"), options["headers"]))
            return next(coming)

        monkeypatch.setattr(httpx, "request", request)
        monkeypatch.setattr(drain_command, "LOOK_SECONDS", 0.0)
        monkeypatch.setenv("SEGUE_API_KEY", "sk-one")
        return asked

    return start


def status(state: str, reason: str = "", incarnation: str = "aa") -> httpx.Response:
    worker = {"id": "decode-0", "incarnation": incarnation, "state": state, "reason": reason}
    return httpx.Response(200, json={"workers": [worker]})


def refusal(code: int, message: str) -> httpx.Response:
    return httpx.Response(code, json={"error": {"message": message}})


def test_migrate_prints_what_was_moved(play: Play) -> None:
    asked = play(httpx.Response(200, json=DONE))
    done = CliRunner().invoke(app, ["migrate", "cmpl-mine", "decode-1", "--url", "http://g:1/"])
    assert done.exit_code == 0, done.output
    assert "abc-0 moved from decode-0 to decode-1" in done.output
    assert "300 tokens in its context; 19 KV blocks (2.0 MiB) moved, 2 of them" in done.output
    assert "12.3 ms for which it stood still" in done.output
    assert "45.6 ms between the last token of one and the first of the other" in done.output
    order = {"request": "cmpl-mine", "worker": "decode-1"}
    bearer = {"Authorization": "Bearer sk-one"}
    assert asked == [("POST", "http://g:1/admin/migrate", order, bearer)]


def test_migrate_without_all_figures() -> None:
    unsaid = dict.fromkeys(("blocks", "tokens", "bytes", "blocks_while_stopped", "stopped_ms"))
    assert len(account(DONE | unsaid)) == 2
    assert "ended before" in account(DONE | {"pause_ms": None})[-1]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refusal(400, "no request 'x' is running"), "segue: no request 'x' is running"),
        (refusal(503, "no room within 5 s: it needs 9"), "no room within 5 s: it needs 9"),
        (httpx.Response(200, json={}), "can not be read"),
        (httpx.Response(404, json={}), "answered with status 404"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(play: Play, answer: httpx.Response, told: str) -> None:
    play(answer)
    failed = CliRunner().invoke(app, ["migrate", "x", "decode-1"])
    assert failed.exit_code == 2
    assert told in failed.stderr and len(failed.stderr.splitlines()) == 1


def test_drain_waits_and_tells_what_for(play: Play) -> None:
    begun = httpx.Response(200, json={"worker": "decode-0", "incarnation": "aa"})
    waiting = "drained on order: waits for 3 requests, 2 leases"
    asked = play(
        begun,
        status("draining", waiting),
        status("draining", waiting),
        status("dead", "drained"),
    )
    done = CliRunner().invoke(app, ["drain", "decode-0"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[:2] == ["decode-0 is draining", f"decode-0 draining: {waiting}"]
    assert len(lines) == 3 and lines[2].startswith("decode-0 has left after ")
    assert asked[0][:3] == ("POST", "http://127.0.0.1:8000/admin/drain", {"worker": "decode-0"})


def test_drain_does_not_take_the_next_life_for_the_old_one(play: Play) -> None:
    play(
        httpx.Response(200, json={"worker": "decode-0", "incarnation": "aa"}),
        status("starting", incarnation="bb"),
    )
    assert "has left" in CliRunner().invoke(app, ["drain", "decode-0"]).output


def test_drain_may_leave_it_at_the_order(play: Play) -> None:
    asked = play(httpx.Response(200, json={"worker": "decode-0", "incarnation": "aa"}))
    assert CliRunner().invoke(app, ["drain", "decode-0", "--no-wait"]).exit_code == 0
    assert len(asked) == 1


def test_drain_does_not_wait_for_ever(play: Play) -> None:
    play(
        httpx.Response(200, json={"worker": "decode-0", "incarnation": "aa"}),
        status("draining", "waits for 1 requests, 0 leases"),
        status("draining", "waits for 1 requests, 0 leases"),
    )
    late = CliRunner().invoke(app, ["drain", "decode-0", "--timeout", "0"])
    assert late.exit_code == 2 and "has not left yet" in late.stderr
