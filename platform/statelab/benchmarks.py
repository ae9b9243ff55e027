"""Benchmarks, found by name among entry points: the core imports none of what they measure.

An entry point of the group `statelab.benchmarks` names a module, which need not know statelab:

    OPTIONS: Mapping[str, Sequence[str]]        for each option the words that it takes
    def run(options: Mapping[str, Sequence[str]]) -> Mapping     the fields of a `Report`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, cast

from statelab.errors import ConfigError, PluginError, UnknownNameError, near_miss

__all__ = ["Benchmark", "Report", "run_benchmark"]


class Benchmark(Protocol):
    """What the module holds."""

    OPTIONS: Mapping[str, Sequence[str]]

    def run(self, options: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
        """Measure; only options that were given are there. Progress goes to a log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a benchmark found.

    Attributes:
        correct: Whether everything computes what it should. What doesn't has no times.
        setup: What was measured, and where.
        tables: Rows by title. A row maps columns to cells, and a cell is a plain value, or a
            measurement: {"median", "low", "high"}, with "target" and "met" where one is set.
    """

    correct: bool
    setup: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]


def run_benchmark(name: str, options: Iterable[str] = ()) -> Report:
    """Run the benchmark of that name.

    Args:
        name: Of its entry point.
        options: As on the command line: `["cases=gla,kda", "quick=true"]`.

    Raises:
        UnknownNameError: If there is no such benchmark, or it has no such option.
        ConfigError: If an option doesn't take that word.
        PluginError: If the benchmark can't be imported.
    """
    benchmark = _load(name)
    given = {}
    for each in options:
        option, _, value = each.partition("=")
        given[option] = _words(name, benchmark.OPTIONS, option, value)
    return Report(**benchmark.run(given))


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


def _words(name: str, known: Mapping[str, Sequence[str]], option: str, value: str) -> list[str]:
    if option not in known:
        raise UnknownNameError(
            f"benchmark {name!r} has no option {option!r}.{near_miss(option, known)} "
            f"It takes {', '.join(f'{each}=' for each in known)}."
        )
    words = value.split(",")
    for word in words:
        if word not in known[option]:
            raise ConfigError(
                f"{option}={word} is not known to benchmark {name!r}."
                f"{near_miss(word, known[option])} Allowed: {', '.join(known[option])}."
            )
    return words
