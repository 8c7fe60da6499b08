"""`segue bench`: arguments that make no sense end with one line and exit code 2."""

import pytest
from typer.testing import CliRunner

from segue.deploy.bench_command import bench_app


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "1,x"], "'1,x' is not like 1,4,16"),
        (["--concurrency", "0"], "--concurrency: one or more numbers from 1"),
        (["--prompt-tokens", "0"], "--prompt-tokens: at least 1"),
        (["--output-tokens", "0", "--warmup", "-1"], "--output-tokens: at least 1; --warmup"),
        (["--requests-per-level", "0"], "--requests-per-level: at least 1"),
        (["--shared-prefix-tokens", "129"], "from 0 to --prompt-tokens"),
        (["--timeout", "0"], "--timeout: more than 0"),
        (["--url", "ftp://localhost:8000"], "--url: http://host:port"),
        (["--url", "8000", "--port", "9"], "give --url or --port, not both"),
        (["--json", "/no/such/folder/figures.json"], "no folder for"),
        (["--tokenizer", "/no/such/folder", "--model", "m"], "no tokenizer at"),
        (["--port", "9"], "no answer from the server"),
    ],
)
def test_a_wrong_argument_is_explained(options: list[str], message: str) -> None:
    outcome = CliRunner().invoke(bench_app, ["serve", *options])
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("segue: ")
    assert message in outcome.stderr
    assert "Traceback" not in outcome.output
