"""The command line. Each command imports what it needs, so that help comes at once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from statelab.errors import StatelabError

if TYPE_CHECKING:
    from statelab.registry import Registry

__all__ = ["app", "main"]

app = typer.Typer(
    name="statelab",
    help="A laboratory for language models with a fixed-size memory. Arguments are key=value.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, last.")]


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Without a command, say what to type next."""
    from statelab.console import print_start

    if context.invoked_subcommand is None:
        print_start()


@app.command()
def rules(json: Json = False) -> None:
    """List the write rules, read rules and data modules."""
    from statelab.console import print_json, print_rules
    from statelab.registries import data_modules, read_rules, write_rules

    kinds: dict[str, Registry[Any]] = {
        "write": write_rules,
        "read": read_rules,
        "data": data_modules,
    }
    listed = {kind: registry.summaries() for kind, registry in kinds.items()}
    print_json(listed) if json else print_rules(listed)


@app.command()
def keys(json: Json = False) -> None:
    """List every key with its type, default, range and meaning."""
    from statelab.catalogue import all_keys
    from statelab.console import print_json, print_keys

    sections = all_keys()
    print_json(sections) if json else print_keys(sections)


@app.command()
def show(overrides: Keys = None, json: Json = False) -> None:
    """Print the configuration that these arguments mean, and where each value comes from."""
    from statelab.console import print_config, print_json
    from statelab.loading import resolve, to_dict

    resolved = resolve(None, overrides or [])
    config = to_dict(resolved.config)
    print_json(config) if json else print_config(config, resolved.origins)


@app.command()
def describe(overrides: Keys = None, json: Json = False) -> None:
    """Print parameters, state size and operations of a model, without building it."""
    import dataclasses

    from statelab.console import print_json, print_sizes
    from statelab.loading import load_config
    from statelab.sizes import measure

    sizes = measure(load_config(None, overrides or []))
    print_json(dataclasses.asdict(sizes)) if json else print_sizes(sizes)


@app.command()
def train(overrides: Keys = None, json: Json = False) -> None:
    """Train: `statelab train experiment=mqar write=deltanet read=ccq`."""
    from statelab.console import print_json, print_result
    from statelab.loading import load_config

    config = load_config(None, overrides or [])
    from statelab import train as training

    result = training.train(config)
    print_json(result.to_json()) if json else print_result(result)
    raise typer.Exit(result.exit_status)


@app.command("eval")
def evaluate(overrides: Keys = None, json: Json = False) -> None:
    """Evaluate a run on its validation split: `statelab eval run=ID [checkpoint=best]`."""
    from statelab.console import print_json, print_metrics

    given, rest = _take(overrides, "run", "checkpoint", "run_dir", "tracking.uri")
    if "run" not in given:
        _refuse("eval needs a run: statelab eval run=ID.")
    from statelab import evaluate as evaluation
    from statelab.runs import find_run

    run = find_run(
        given["run"], run_dir=given.get("run_dir", "runs"), uri=given.get("tracking.uri")
    )
    result = evaluation.evaluate(run, checkpoint=given.get("checkpoint", "last"), overrides=rest)
    print_json(result.to_json()) if json else print_metrics(result)


@app.command()
def ui(overrides: Keys = None) -> None:
    """Open MLflow on the runs of this folder: `statelab ui [run_dir=runs] [port=5000]`."""
    from pathlib import Path

    from statelab.tracking import tracker

    given, rest = _take(overrides, "run_dir", "tracking.uri", "host", "port")
    if rest:
        _refuse(f"ui takes run_dir, tracking.uri, host and port, got {rest[0]}.")
    port = given.get("port", "5000")
    if not (port.isdigit() and 0 < int(port) < 65536):
        _refuse(f"port must be a number from 1 to 65535, got {port!r}.")
    tracker().serve(
        uri=given.get("tracking.uri"),
        run_dir=Path(given.get("run_dir", "runs")),
        host=given.get("host", "127.0.0.1"),
        port=int(port),
    )


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT")], options: Keys = None, json: Json = False
) -> None:
    """Measure speed and memory, correctness first: `statelab bench kernels [cases=gla,kda]`."""
    import dataclasses

    from statelab.benchmarks import run_benchmark
    from statelab.console import print_json, print_report

    report = run_benchmark(what, options or [])
    print_json(dataclasses.asdict(report)) if json else print_report(report)
    raise typer.Exit(0 if report.correct else 1)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line.

    Exit status: 0 done, 1 failed, 2 the user's mistake (one line), 130 Ctrl-C, 143 terminated.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("lightning", "mlflow", "alembic", "datasets", "matplotlib", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.exit(_guard(lambda: app(_as_keys(given), standalone_mode=False)))


def _guard(command: Callable[[], Any]) -> int:
    """Run a command, and say in one line on standard error what the user can mend."""
    try:
        return command() or 0
    except StatelabError as error:
        said = str(error)
    except TyperException as error:
        said = f"{error.format_message()} (see `statelab --help`)"
    sys.stderr.write(f"statelab: {' '.join(said.splitlines())}\n")
    return 2


def _as_keys(arguments: list[str]) -> list[str]:
    """Take `--section.key value` and `--section.key=value` as `section.key=value`."""
    keys: list[str] = []
    rest = iter(arguments)
    for each in rest:
        name = each.removeprefix("--")
        if each.startswith("--") and "." in name.partition("=")[0]:
            keys.append(name if "=" in name else f"{name}={next(rest, '')}")
        else:
            keys.append(each)
    return keys


def _take(overrides: list[str] | None, *names: str) -> tuple[dict[str, str], list[str]]:
    """Split key=value arguments into those of this command and the rest."""
    given: dict[str, str] = {}
    rest: list[str] = []
    for each in overrides or []:
        key, equals, value = each.partition("=")
        if key in names and equals:
            given[key] = value
        else:
            rest.append(each)
    return given, rest


def _refuse(message: str) -> NoReturn:
    from statelab.errors import ConfigError

    raise ConfigError(message)


if __name__ == "__main__":
    main()
