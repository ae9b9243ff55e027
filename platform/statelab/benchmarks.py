"""Benchmarks, found by name among entry points: the core imports none of what they measure.

An entry point of the group `statelab.benchmarks` names a module that is a `Benchmark`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from statelab.errors import ConfigError, PluginError, UnknownNameError, near_miss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Benchmark", "Report", "run_benchmark"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a benchmark found.

    Attributes:
        correct: Whether everything computes what it should. What doesn't has no times.
        setup: What was measured, and where.
        tables: Rows by title. A row maps columns to cells, and a cell is a plain value, None where
            there is none, or a measurement: {"median", "low", "high"}, with "target" and "met"
            where one is set.
    """

    correct: bool
    setup: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]


class Benchmark(Protocol):
    """What the module holds: for each option the words that it takes, and two functions."""

    OPTIONS: Mapping[str, Sequence[str] | range]

    def run(self, options: Mapping[str, Sequence[str]]) -> Report:
        """Measure; only options that were given are there. Progress goes to a log."""

    def draw(self, report: Report) -> Figure | None:
        """Time against T; None where nothing was timed."""


def run_benchmark(
    name: str, options: Iterable[str] = (), *, out: Path
) -> tuple[Report, list[Path]]:
    """Run the benchmark of that name, and write what it found.

    Args:
        name: Of its entry point.
        options: As on the command line: `["cases=gla,kda", "quick=true"]`.
        out: Folder of `bench-<name>.json` and `bench-<name>.png`; what it found before is replaced.

    Returns:
        The report, and the files.

    Raises:
        UnknownNameError: If there is no such benchmark, or it has no such option.
        ConfigError: If an option doesn't take that word.
        RunError: If the folder can't be made.
        PluginError: If the benchmark can't be imported.
    """
    benchmark = _load(name)
    given = {}
    for each in options:
        option, _, value = each.partition("=")
        given[option] = _words(name, benchmark.OPTIONS, option, value)
    from statelab.figures.style import save
    from statelab.runs.tracking import make_folder

    table, picture = out / f"bench-{name}.json", out / f"bench-{name}.png"
    # Before minutes of measuring, not after them.
    make_folder(out, str(out), "out")
    report = benchmark.run(given)
    table.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", encoding="utf-8")
    picture.unlink(missing_ok=True)
    figure = benchmark.draw(report)
    if figure is None:
        return report, [table]
    save(figure, picture)
    return report, [table, picture]


def _load(name: str) -> Benchmark:
    points = {point.name: point for point in entry_points(group="statelab.benchmarks")}
    if name not in points:
        raise UnknownNameError(
            f"unknown benchmark {name!r}.{near_miss(name, points)} "
            f"Registered: {', '.join(sorted(points))}."
        )
    try:
        return cast("Benchmark", points[name].load())
    except Exception as error:
        raise PluginError(
            f"benchmark {name!r} fails to import ({points[name].value}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _words(
    name: str, known: Mapping[str, Sequence[str] | range], option: str, value: str
) -> list[str]:
    if option not in known:
        raise UnknownNameError(
            f"benchmark {name!r} has no option {option!r}.{near_miss(option, known)} "
            f"It takes {', '.join(f'{each}=' for each in known)}."
        )
    words, allowed = value.split(","), known[option]
    for word in words:
        if isinstance(allowed, range):
            fits, names = word.isdecimal() and int(word) in allowed, []
            listed = f"{allowed[0]} to {allowed[-1]}"
        else:
            fits, names, listed = word in allowed, list(allowed), ", ".join(allowed)
        if not fits:
            raise ConfigError(
                f"{option}={word} is not known to benchmark {name!r}."
                f"{near_miss(word, names)} Allowed: {listed}."
            )
    return words
