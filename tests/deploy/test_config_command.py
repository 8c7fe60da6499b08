"""`segue config`: what it prints can be read back, and a wrong file is explained."""

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from segue.cluster.config.file import load_config, parse_config
from segue.cluster.config.whole import SegueConfig
from segue.deploy.config_command import config_app


def test_without_a_file_the_defaults_are_shown() -> None:
    outcome = CliRunner().invoke(config_app, ["show"])
    assert outcome.exit_code == 0
    assert parse_config(yaml.safe_load(outcome.stdout)) == SegueConfig()


def test_a_file_is_shown_with_its_defaults_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("gateway: {port: 9}\npools: {all: {role: both}}\n")
    outcome = CliRunner().invoke(config_app, ["show", str(file)])
    assert outcome.exit_code == 0
    assert parse_config(yaml.safe_load(outcome.stdout)) == load_config(file)
    assert "lease_s: 30.0" in outcome.stdout


def test_a_wrong_file_ends_with_a_message(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("gateway: {prot: 9}\n")
    outcome = CliRunner().invoke(config_app, ["show", str(file)])
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert "gateway.prot: unknown key; did you mean 'port'?" in outcome.stderr


def test_what_is_probably_not_meant_is_told_beside_it(tmp_path: Path) -> None:
    file, there = tmp_path / "cluster.yaml", tmp_path / "keys"
    there.write_text("key")
    file.write_text(
        f"model: {{path: {tmp_path}/none}}\n"
        f"gateway: {{api_keys_file: {there}, admin_keys_file: {tmp_path}/admins}}\n"
        "pools: {all: {role: both}, more: {role: decode, num_replicas: 0}}\n"
    )
    outcome = CliRunner().invoke(config_app, ["show", str(file)])
    assert outcome.exit_code == 0
    assert parse_config(yaml.safe_load(outcome.stdout)) == load_config(file)
    assert outcome.stderr.splitlines() == [
        "segue: warning: pools.more.num_replicas is 0: no worker of it will be started",
        f"segue: warning: model.path: there is no {tmp_path}/none here",
        f"segue: warning: gateway.admin_keys_file: there is no {tmp_path}/admins here",
    ]
    assert not CliRunner().invoke(config_app, ["show"]).stderr


def test_the_schema_describes_the_file() -> None:
    outcome = CliRunner().invoke(config_app, ["schema"])
    assert outcome.exit_code == 0
    schema = json.loads(outcome.stdout)
    assert set(schema["properties"]) == set(SegueConfig.model_fields)
    assert schema["additionalProperties"] is False
