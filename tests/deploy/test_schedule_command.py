"""`segue schedule`: the shipped walkthrough line by line, and scenarios that cannot be run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from segue.cluster.errors import ConfigurationError
from segue.deploy.launch import app
from segue.deploy.schedule_command import packed
from segue.deploy.schedule_scenario import load_scenario

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "scenarios"
WALKTHROUGH = EXAMPLES / "walkthrough.yaml"

A = [
    ("R4 C[0,2048); R1 R2 R3", 2051, 3),
    ("R4 C[2048,4096); R1 R2 R3", 2051, 3),
    ("R4 C[4096,6144); R1 R2 R3", 2051, 12),
    ("R4 C[6144,8192) R5 C[0,20); R2 R3", 2070, 11),
    ("R4 C[8192,9000); R2 R3 R5", 811, 9),
    ("R2 R3 R4 R5", 4, 9),
]
B = [
    ("R4 C[0,4032); R1 R2 R3", 4035, 3),
    ("R4 C[4032,8064); R1 R2 R3", 4035, 3),
    ("R4 C[8064,9000); R1 R2 R3", 939, 12),
    ("R5 C[0,20); R2 R3 R4", 23, 11),
    ("R2 R3 R4 R5", 4, 9),
]
C = [*A[:3], ("R4 C[6144,9000) R5 C[0,20); R2 R3", 2878, 11), ("R2 R3 R4 R5", 4, 9)]


def test_the_walkthrough_shows_all_its_tables() -> None:
    shown = [
        [(packed(it), it.num_tokens, it.free_blocks) for it in each.run()]
        for each in load_scenario(WALKTHROUGH).each()
    ]
    assert shown[:5] == [A, A, B, B, C]
    waits = [("R1 R2 R3", 3, 143), ("R1 R2 R3", 3, 143), ("R1 R2 R3", 3, 152)]
    assert shown[5][:4] == [*waits, ("R4 C[0,2048) R5 C[0,20); R2 R3", 2070, 10)]
    assert shown[6][:4] == [*waits, ("R4 C[0,4032) R5 C[0,20); R2 R3", 4054, 10)]
    assert shown[7] == A
    assert [line[:2] for line in shown[8]] == [line[:2] for line in A]
    assert [line[1] for line in shown[9]] == [2051, 2051, 2051, 2051, 3, 3]
    assert [line[:2] for line in shown[10]] == [
        *(line[:2] for line in A[:3]),
        ("R4 C[6144,8192); R2 R3", 2050),
        ("R4 C[8192,9000) R5 C[0,20); R2 R3", 830),
        A[5][:2],
    ]


def test_the_command_prints_a_table_for_each_variant() -> None:
    result = CliRunner().invoke(app, ["schedule", str(WALKTHROUGH), "--last", "2"])
    assert result.exit_code == 0, result.output
    variants = load_scenario(WALKTHROUGH).variants
    assert all(variant.title in result.output for variant in variants) and len(variants) == 11
    assert "R4 C[8192,9000); R2 R3 R5" in result.output


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_scenario_runs(path: Path) -> None:
    for each in load_scenario(path).each():
        assert list(each.run())


BASE: dict[str, Any] = {
    "engine": {"num_kv_blocks": 10},
    "requests": [{"name": "a", "prompt_tokens": 20, "max_tokens": 4}],
}


NO_CHUNKING = {"context_chunking_policy": "no_chunking"}


def scenario(folder: Path, **changes: Any) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(BASE | changes))
    return path


def test_landing_sharing_and_arrivals_are_described(tmp_path: Path) -> None:
    requests = [
        {"name": "first", "prompt_tokens": 33, "max_tokens": 9},
        {
            "name": "twin",
            "prompt_tokens": 40,
            "max_tokens": 2,
            "arrives": 2,
            "shares": {"request": "first", "tokens": 32},
        },
        {"name": "far", "prompt_tokens": 16, "max_tokens": 3, "arrives": 2, "lands": True},
    ]
    (each,) = load_scenario(scenario(tmp_path, requests=requests)).each()
    lines = [packed(it) for it in each.run()]
    assert lines[:3] == [
        "first C[0,33)",
        "twin C[32,40); first (landed: far)",
        "first twin far",
    ]
    assert len(lines) == 9


def test_adapters_are_described(tmp_path: Path) -> None:
    path = EXAMPLES / "adapters.yaml"
    shown = [[packed(it) for it in each.run()] for each in load_scenario(path).each()]
    first, second = shown
    assert first[0] == "A C[0,64) C C[0,64)" and first[-1] == "B"
    assert second[0] == "A C[0,64)" and len(first) < len(second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": []}, "at least 1 item"),
        ({"requests": BASE["requests"] * 2}, "two requests are named a"),
        ({"engine": {"num_kv_blocks": 1}}, "a does not fit"),
        ({"engine": {"num_kv_blocks": 10, "chunk_size": 1024}}, "max_num_batched_tokens must hold"),
        ({"engine": {"blocks": 3}}, "engine.blocks: Extra inputs are not permitted"),
        (
            {"requests": [BASE["requests"][0] | {"shares": {"request": "b", "tokens": 2}}]},
            "a shares the prompt of b, which does not stand before it",
        ),
        ({"requests": [BASE["requests"][0] | {"generated": 4}]}, "less than max_tokens"),
        (
            {"engine": {"num_kv_blocks": 10, "chunk_size": 16, **NO_CHUNKING}},
            "a: without chunking its context, up to 20 tokens, must fit a step "
            "(engine.chunk_size: 16)",
        ),
        ({"variants": [{"title": "t", "requests": {"z": {}}}]}, "t: no request is named z"),
        ({"variants": [{"title": "t", "engine": {"block_size": 0}}]}, "engine.block_size"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        for each in load_scenario(scenario(tmp_path, **changes)).each():
            list(each.run())
    assert message in caught.value.message


def test_a_bad_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["schedule", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
