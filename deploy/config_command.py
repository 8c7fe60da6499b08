"""`segue config`: what a configuration file comes to, and the schema it follows."""

import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
import yaml

from segue.cluster.config.file import load_config
from segue.cluster.config.whole import SegueConfig
from segue.deploy.config_warnings import config_warnings
from segue.deploy.user_errors import told_to_the_user

config_app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@config_app.command()
def show(
    file: Annotated[Path | None, typer.Argument(help="YAML file; without it, the defaults")] = None,
) -> None:
    """Check FILE and print the effective configuration, every default filled in, as YAML.

    What is allowed but probably not meant is told on stderr.
    """
    with told_to_the_user():
        config = load_config(file)
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
    for warning in config_warnings(config):
        print(f"segue: warning: {warning}", file=sys.stderr)


@config_app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors and checks."""
    print(orjson.dumps(SegueConfig.model_json_schema(), option=orjson.OPT_INDENT_2).decode())
