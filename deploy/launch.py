"""The `segue` command."""

from pathlib import Path
from typing import Annotated

import typer

import segue
from segue.cluster.config.environment import quiet_grpc
from segue.cluster.errors import ConfigurationError
from segue.deploy.bench_command import bench_app
from segue.deploy.config_command import config_app
from segue.deploy.drain_command import drain, migrate
from segue.deploy.schedule_command import schedule
from segue.deploy.status_command import status
from segue.deploy.trace_command import trace
from segue.deploy.user_errors import told_to_the_user

app = typer.Typer(
    help="Serve large language models with prefill and decode disaggregated.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")
app.command()(status)
app.command()(schedule)
app.command()(trace)
app.command()(migrate)
app.command()(drain)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"segue {segue.__version__}")
        raise typer.Exit


@app.callback()
def segue_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show it")
    ] = False,
) -> None:
    """Serve large language models with prefill and decode disaggregated."""


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file; without it the bundled model is served")
    ] = None,
    config_option: Annotated[
        Path | None, typer.Option("--config", help="the same as CONFIG")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="join this Ray cluster (auto or host:port); default: start one here"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="default: gateway.host of CONFIG")] = None,
    port: Annotated[int | None, typer.Option(help="default: gateway.port of CONFIG")] = None,
    generation_config: Annotated[
        str | None,
        typer.Option(help="auto: the model's own sampling defaults; none: temperature 1"),
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="name of this deployment within its Ray cluster")
    ] = "segue",
) -> None:
    """Serve a model until Ctrl-C; twice: at once.

    Exit code 2 if the configuration can not be served.
    """
    quiet_grpc()
    from segue.deploy.serve import ServeOptions, run_server  # only this command needs Ray

    with told_to_the_user():
        if config is not None and config_option is not None:
            raise ConfigurationError("give CONFIG or --config, not both")
        run_server(
            ServeOptions(config or config_option, address, host, port, namespace, generation_config)
        )


def main() -> None:
    app()


if __name__ == "__main__":
    main()
