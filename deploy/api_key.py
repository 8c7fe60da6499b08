"""The key that client commands send: an option, or what the environment holds."""

from typing import Annotated

import typer

from segue.cluster.config.environment import api_key_from_environment

ApiKeyOption = Annotated[
    str | None, typer.Option(help="sent as a bearer token; default: what SEGUE_API_KEY holds")
]


def chosen_api_key(option: str | None) -> str | None:
    return option or api_key_from_environment()
