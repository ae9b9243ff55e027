"""What the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path

    from statelab.benchmarks import Report
    from statelab.config import Config
    from statelab.evaluate import Evaluation
    from statelab.runs.records import RunRecord
    from statelab.sizes import Sizes
    from statelab.testing.suite import Report as CheckReport
    from statelab.train import Result

__all__ = [
    "console",
    "make_table",
    "print_command",
    "print_config",
    "print_evaluation",
    "print_facts",
    "print_json",
    "print_keys",
    "print_metrics",
    "print_report",
    "print_result",
    "print_rules",
    "print_runs",
    "print_sizes",
    "print_start",
    "progress",
]

_RUN_METRICS = ("val/loss", "val/accuracy", "val/bpb")

# Names, paths and lists are printed as they are: `[q, k]` is no markup, `:gear:` no picture.
# A pipe has no width that a table must fit into.
_WIDTH = None if sys.stdout.isatty() else 1000
console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, width=_WIDTH)


def print_json(value: object) -> None:
    """Print one JSON object on a line of its own; numbers JSON doesn't know become null."""
    sys.stdout.write(json.dumps(_finite(value)) + "\n")


def print_start() -> None:
    """Print the three commands to begin with."""
    console.print("statelab train experiment=mqar smoke=true", "  two steps of everything")
    console.print("statelab rules                           ", "  what can be combined")
    console.print("statelab --help                          ", "  all commands")


def print_rules(kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Print the registered names with what each is."""
    table = make_table("kind", "name", "what")
    for kind, names in kinds.items():
        for name, summary in names.items():
            table.add_row(kind, name, summary)
    console.print(table)


def print_keys(sections: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """Print all keys, section by section."""
    for section, keys in sections.items():
        table = make_table("key", "type", "default", "range", "meaning", title=section)
        for key in keys:
            table.add_row(key["name"], key["type"], key["default"], key["range"], key["doc"])
        console.print(table)


def print_config(config: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Print a configuration as YAML, each line with where its value comes from."""
    for line, key in _yaml_lines(config):
        origin = origins.get(key, "") if key else ""
        text = Text(f"{line:<56}" if origin else line)
        console.print(text.append(f" # {origin}", style="dim") if origin else text)


def print_sizes(sizes: Sizes) -> None:
    """Print how large a model is; layers alike that follow each other take one line, each's."""
    table = make_table("size", "", right=("",))
    table.add_row("parameters", f"{sizes.parameters:,}")
    table.add_row("state, bytes a sequence", f"{sizes.state_bytes:,}")
    table.add_row("memory, bytes a sequence", f"{sizes.memory_bytes:,}")
    table.add_row("forward FLOPs a token", f"{sizes.flops_per_token:,}")
    console.print(table)
    layers = make_table("layer", "kind", "parameters", "state, bytes", right=("parameters",))
    first = 0
    for layer, alike in itertools.groupby(sizes.per_layer):
        last = first + len(list(alike)) - 1
        state = ", ".join(f"{name} {size:,}" for name, size in layer["state"].items())
        index = str(first) if first == last else f"{first}-{last}"
        layers.add_row(index, layer["kind"], f"{layer['parameters']:,}", state or "none")
        first = last + 1
    console.print(layers)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print values by name."""
    table = make_table("what", "value")
    for name, value in facts.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    console.print(table)


def print_metrics(result: Result) -> None:
    """Print the metrics of an evaluation."""
    table = make_table("metric", "value", right=("value",))
    for name, value in sorted(result.metrics.items()):
        table.add_row(name, f"{value:,.4g}" if name.startswith("perf/") else f"{value:.4f}")
    console.print(table)


def print_evaluation(result: Evaluation) -> None:
    """Print what an evaluation found, table after table, or its metrics where it made none."""
    if not result.report.tables:
        print_metrics(result)
        return
    console.print(", ".join(f"{name} {value}" for name, value in result.report.setup.items()))
    _print_tables(result.report.tables, digits=5)
    console.print("\n".join(map(str, result.files)))


def print_result(result: Result, config: Config) -> None:
    """Print how a run ended, and what to type next."""
    print_metrics(result)
    console.print(f"run {result.run_id}: {result.status}")
    console.print(f"folder {result.folder}")
    place = config.place()
    if result.checkpoint and result.status != "FINISHED":
        print_command("train", f"resume={result.run_id}", *place)
    if result.checkpoint:
        print_command("eval", f"run={result.run_id}", *place)
        print_command("inspect", f"run={result.run_id}", *place)
    print_command("runs", f"experiment={config.experiment}", *place)
    if config.tracking.enabled:
        print_command("ui", *place)


def print_runs(runs: Sequence[RunRecord], sort: str | None, *, to: IO[str] | None = None) -> None:
    """Print a line for each run.

    Args:
        runs: The runs.
        sort: A metric to show beside the usual ones.
        to: Where to print; None is standard output.
    """
    wanted = dict.fromkeys((*_RUN_METRICS, *([sort] if sort else [])))
    metrics = [name for name in wanted if any(name in run.metrics for run in runs)]
    # A name of two lines leaves room for the values on a narrow screen.
    heads = [name.replace("/", "/\n") for name in metrics]
    columns = ("run", "experiment", "pair", "status", "step", *heads, "age")
    table = make_table(*columns, right=("step", *heads, "age"))
    for column in (table.columns[0], table.columns[-1]):
        column.no_wrap = True
    for run in runs:
        values = [f"{run.metrics[name]:.4f}" if name in run.metrics else "" for name in metrics]
        status = "lost" if run.lost else run.status
        step = "" if run.step is None else f"{run.step:,}"
        age = _age(time.time() - run.started)
        table.add_row(run.id[:8], run.experiment, run.pair, status, step, *values, age)
    (Console(file=to) if to else console).print(table)


def print_checks(report: CheckReport) -> None:
    """Print what the checks of a pair of rules found; where each failure is."""
    title = f"{report.write} + {report.read}, backend {report.backend}"
    right = ("measured", "allowed")
    table = make_table("what", *right, "pass", "where, or why not", title=title, right=right)
    for row in report.rows:
        measured = "-" if row.measured is None else f"{row.measured:.1e}"
        verdict = {True: "yes", False: "NO", None: "-"}[row.passed]
        detail = "" if row.passed else row.detail
        style = "bold red" if row.passed is False else ""
        table.add_row(row.what, measured, f"{row.allowed:.0e}", verdict, detail, style=style)
    console.print(table)
    failed = sum(row.passed is False for row in report.rows)
    console.print(f"{failed} of {len(report.rows)} fail." if failed else "All promises are kept.")


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is going on; yields what to tell it to."""
    with Console(stderr=True, highlight=False).status(title) as status:
        yield lambda what: status.update(f"{title}: {what}")


def print_report(report: Report, files: Sequence[Path]) -> None:
    """Print what a benchmark found, its setup, then table after table; and where it wrote it."""
    console.print(", ".join(f"{name} {value}" for name, value in report.setup.items()))
    _print_tables(report.tables, digits=3)
    console.print("±: half the distance of the quartiles; below it the target, where one is set")
    console.print("\n".join(map(str, files)))


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def print_command(*words: str) -> None:
    """Print a command of statelab's as it is typed."""
    console.print(shlex.join(("statelab", *words)))


def make_table(*columns: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """An empty table.

    Args:
        columns: Their heads.
        title: Stands above.
        right: The columns of numbers.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _print_tables(tables: Mapping[str, Sequence[Mapping[str, Any]]], *, digits: int) -> None:
    for title, rows in tables.items():
        if not rows:
            continue
        first, *rest = rows[0]
        table = make_table(first, *(name.replace("_", " ") for name in rest), title=title)
        table.columns[0].no_wrap = True
        for row in rows:
            table.add_row(*(_cell(value, digits) for value in row.values()))
        console.print(table)


def _cell(value: Any, digits: int) -> str:
    """A cell of a report; a measurement's target stands on a line of its own."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}g}"
    if not isinstance(value, Mapping):
        return str(value)
    around = (value["high"] - value["low"]) / 2 / value["median"]
    target = f"\n{value['target']} {'met' if value['met'] else 'MISSED'}" if "met" in value else ""
    return f"{_cell(value['median'], digits)} ±{around:.0%}{target}"


def _yaml_lines(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Lines of YAML, each with its dotted key."""
    import yaml

    lines: list[tuple[str, str]] = []
    indent = "  " * prefix.count(".")
    for name, each in value.items():
        if isinstance(each, Mapping) and each:
            lines.append((f"{indent}{name}:", ""))
            lines += _yaml_lines(each, f"{prefix}{name}.")
        else:
            text = yaml.safe_dump(each, default_flow_style=True, width=10_000).strip()
            lines.append((f"{indent}{name}: {text.removesuffix('...').strip()}", prefix + name))
    return lines


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
