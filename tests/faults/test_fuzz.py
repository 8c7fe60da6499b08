"""A short run of the fuzzer on real workers; `make fuzz` plays longer ones."""

import subprocess
import sys

import pytest
from nursery import SUPPORT

SECONDS = 20


@pytest.mark.timeout(270)
def test_no_answer_is_wrong_whatever_happens_meanwhile() -> None:
    command = [sys.executable, str(SUPPORT / "fuzz.py"), "--seconds", str(SECONDS), "--seed", "3"]
    played = subprocess.run(command, capture_output=True, text=True, timeout=250)
    last = played.stdout.splitlines()[-1] if played.stdout else played.stderr
    assert played.returncode == 0, f"{played.stdout}\n{played.stderr}"
    answers, *verdict = last.split(", ")
    assert verdict == ["0 wrong", "0 left over"]
    assert int(answers.split()[0]) > 20
