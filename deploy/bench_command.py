"""`segue bench`: measure a server from the outside."""

import asyncio
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from segue.bench.handover_bench import HandoverPlan, HandoverRow, as_json, run_handover_bench
from segue.bench.interference_bench import InterferencePlan, run_interference_bench
from segue.bench.interference_bench import as_json as interference_json
from segue.bench.openai_endpoint import EndpointName
from segue.bench.serve_bench import ServePlan, ServeResult, run_serve_bench
from segue.bench.serve_report import (
    busy_client_lines,
    failure_lines,
    figures_table,
    progress_bar,
    to_json,
)
from segue.bench.summary import Objective
from segue.cluster.errors import ConfigurationError
from segue.deploy.api_key import ApiKeyOption, chosen_api_key
from segue.deploy.gateway_address import PortOption, UrlOption, chosen_url
from segue.deploy.user_errors import told_to_the_user

bench_app = typer.Typer(help="Measure a server.", no_args_is_help=True)
TABLE_WIDTH = 110  # where no terminal says how wide it is


@bench_app.callback()
def bench() -> None:
    """Measure a server."""


@bench_app.command()
def serve(
    url: UrlOption = None,
    port: PortOption = None,
    model: Annotated[str | None, typer.Option(help="default: its first model")] = None,
    api_key: ApiKeyOption = None,
    endpoint: Annotated[EndpointName, typer.Option(help="API to use")] = "completions",
    concurrency: Annotated[str, typer.Option(help="numbers of clients, a level each")] = "1,4,16",
    prompt_tokens: Annotated[int, typer.Option(help="tokens a prompt")] = 128,
    output_tokens: Annotated[int, typer.Option(help="tokens an answer, exactly")] = 64,
    requests_per_level: Annotated[
        int | None, typer.Option(help="default: 4 a client, 8 at least")
    ] = None,
    shared_prefix_tokens: Annotated[
        int, typer.Option(help="first tokens that all prompts have in common")
    ] = 0,
    warmup: Annotated[int, typer.Option(help="requests before the clock starts")] = 2,
    seed: Annotated[
        int | None, typer.Option(help="of the prompts; default: new ones, so that no cache helps")
    ] = None,
    timeout: Annotated[float, typer.Option(help="seconds for one request")] = 600.0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json or its folder, for exact chat prompts")
    ] = None,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="count goodput: first token")] = None,
    slo_itl_ms: Annotated[
        float | None, typer.Option(help="count goodput: mean time between tokens")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file")] = None,
) -> None:
    """Send streamed requests of fixed lengths to any OpenAI-compatible server and time them.

    Exit code 1 if a request failed or was not answered with exactly the tokens asked for.
    """
    with told_to_the_user():
        plan = ServePlan(
            base_url=chosen_url(url, port),
            model=model,
            api_key=chosen_api_key(api_key),
            endpoint=endpoint,
            concurrency=parse_levels(concurrency),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            requests_per_level=requests_per_level,
            shared_prefix_tokens=shared_prefix_tokens,
            warmup=warmup,
            seed=secrets.randbits(32) if seed is None else seed,
            timeout_s=timeout,
            tokenizer=tokenizer,
            objective=objective_of(slo_ttft_ms, slo_itl_ms),
        )
        result = measure(plan, json)
    if result.num_failed:
        raise typer.Exit(1)


@bench_app.command()
def handover(
    url: UrlOption = None,
    port: PortOption = None,
    model: Annotated[str, typer.Option(help="default: its first model")] = "",
    api_key: ApiKeyOption = None,
    prompt_tokens: Annotated[str, typer.Option(help="tokens of the prompts")] = "128,1024,4096",
    output_tokens: Annotated[int, typer.Option(help="tokens an answer")] = 8,
    rounds: Annotated[int, typer.Option(help="requests of each length")] = 10,
    seed: Annotated[int | None, typer.Option(help="of the prompts; default: new ones")] = None,
    timeout: Annotated[float, typer.Option(help="seconds for one request")] = 600.0,
) -> None:
    """Time the pause between a client's first and second token, and what moved during it.

    One request at a time. The last line is a JSON list, an object for each length of prompt.
    """
    with told_to_the_user():
        plan = HandoverPlan(
            base_url=chosen_url(url, port),
            model=model,
            api_key=chosen_api_key(api_key),
            prompt_tokens=parse_levels(prompt_tokens, "--prompt-tokens"),
            output_tokens=output_tokens,
            rounds=rounds,
            seed=secrets.randbits(32) if seed is None else seed,
            timeout_s=timeout,
        )
        rows = asyncio.run(run_handover_bench(plan))
    output = Console()
    output = output if output.is_terminal else Console(width=TABLE_WIDTH)
    output.print(handover_table(rows))
    print(as_json(rows).decode())


@bench_app.command()
def interference(
    url: UrlOption = None,
    port: PortOption = None,
    model: Annotated[str, typer.Option(help="default: its first model")] = "",
    api_key: ApiKeyOption = None,
    long_tokens: Annotated[int, typer.Option(help="tokens of the long prompt")] = 7800,
    short_tokens: Annotated[int, typer.Option(help="tokens of the short one")] = 10,
    delay: Annotated[float, typer.Option(help="seconds by which the short one is later")] = 0.3,
    rounds: Annotated[int, typer.Option(help="how often; medians are told")] = 3,
    seed: Annotated[int | None, typer.Option(help="of the prompts; default: new ones")] = None,
    timeout: Annotated[float, typer.Option(help="seconds for one request")] = 600.0,
) -> None:
    """Time the first token of a short prompt behind a long one, and of each alone.

    The last line is JSON.
    """
    with told_to_the_user():
        plan = InterferencePlan(
            base_url=chosen_url(url, port),
            model=model,
            api_key=chosen_api_key(api_key),
            long_tokens=long_tokens,
            short_tokens=short_tokens,
            delay_s=delay,
            rounds=rounds,
            seed=secrets.randbits(32) if seed is None else seed,
            timeout_s=timeout,
        )
        found = asyncio.run(run_interference_bench(plan))
    table = Table("prompt", "alone", "with the other", "ratio", title="time to the first token")
    table.add_row(
        f"{short_tokens} tokens, {delay:g} s behind",
        f"{found.short_alone_ms:.0f} ms",
        f"{found.short_behind_ms:.0f} ms",
        f"{found.short_ratio:.2f}",
    )
    table.add_row(
        f"{long_tokens} tokens",
        f"{found.long_alone_ms:.0f} ms",
        f"{found.long_before_ms:.0f} ms",
        f"{found.long_ratio:.2f}",
    )
    Console().print(table)
    print(interference_json(found).decode())


def handover_table(rows: list[HandoverRow]) -> Table:
    table = Table("prompt", "ttft", "handover", "step", "MB moved", "hidden", "raw", "exposed raw")
    table.add_column("ratio")
    for row in rows:
        table.add_row(
            f"{row.prompt_tokens}",
            f"{row.ttft_ms:.0f} ms",
            f"{row.handover_ms:.1f} ms",
            f"{row.step_ms:.1f} ms",
            f"{row.bytes_moved / 1e6:.1f}",
            f"{row.hidden_share:.0%}",
            f"{row.raw_ms:.1f} ms",
            f"{row.exposed_raw_ms:.1f} ms",
            f"{row.ratio:.2f}",
        )
    return table


def measure(plan: ServePlan, json_file: Path | None) -> ServeResult:
    """Run the plan; figures go to stdout and the file, everything else to stderr."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigurationError(f"no folder for {json_file}")
    errors = Console(stderr=True)
    with progress_bar(errors) as progress:
        result = asyncio.run(run_serve_bench(plan, progress))
    output = Console()
    output = output if output.is_terminal else Console(width=TABLE_WIDTH)
    output.print(figures_table(result))
    for line in failure_lines(result):
        errors.print(line, style="red", markup=False, highlight=False)
    for line in busy_client_lines(result):
        errors.print(line, style="yellow", markup=False, highlight=False)
    if json_file is not None:
        json_file.write_bytes(to_json(plan, result))
    return result


def parse_levels(text: str, option: str = "--concurrency") -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigurationError(f"{option}: '{text}' is not like 1,4,16") from error


def objective_of(ttft_ms: float | None, itl_ms: float | None) -> Objective | None:
    if ttft_ms is None and itl_ms is None:
        return None
    return Objective(
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        itl_s=None if itl_ms is None else itl_ms / 1e3,
    )
