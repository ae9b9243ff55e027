"""Slices that are called by two numbers, such as `len_1024_depth_50`, as a map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from statelab.figures.chart import HeatMap
from statelab.figures.style import Subject
from statelab.runs.metric_history import History

__all__ = ["SCORES", "Grid", "find_grid", "over_rows", "slice_map"]

SCORES = {
    "val/exact": "exact match (share of examples)",
    "val/accuracy": "accuracy (share of tokens)",
}
"""What is shown by slice, the first that there is, and what it is called."""

_NAME = re.compile(r"([a-z]+)_(\d+)_([a-z]+)_(\d+)")
_AXES = {
    "len": "length (tokens)",
    "depth": "filler before it (%)",
    "kv": "pairs",
    "entries": "entries",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A metric by two numbers.

    Attributes:
        metric: Its name, without the slices'.
        x: The word before the first number.
        y: The word before the second.
        names: The slices' metrics, by both numbers.
    """

    metric: str
    x: str
    y: str
    names: Mapping[tuple[int, int], str]

    @property
    def columns(self) -> list[int]:
        """The first numbers that there are."""
        return sorted({x for x, _ in self.names})

    @property
    def rows(self) -> list[int]:
        """The second numbers."""
        return sorted({y for _, y in self.names})


def find_grid(names: Iterable[str]) -> Grid | None:
    """The grid that slices make; None unless all are called by the same two words.

    Args:
        names: Of metrics. Exact match is taken where there is any, else accuracy.
    """
    names = list(names)
    for metric in SCORES:
        slices = [n for n in names if n.startswith(f"{metric}/") and n != f"{metric}/mean"]
        found = {name: _NAME.fullmatch(name.removeprefix(f"{metric}/")) for name in slices}
        matches = {name: each for name, each in found.items() if each}
        words = {(each[1], each[3]) for each in matches.values()}
        if len(words) == 1 and len(matches) == len(slices) > 1:
            ((x, y),) = words
            numbers = {(int(each[2]), int(each[4])): name for name, each in matches.items()}
            return Grid(metric=metric, x=x, y=y, names=numbers)
    return None


def slice_map(history: History, subject: Subject) -> Figure | None:
    """Exact match or accuracy at the last validation, by both numbers."""
    grid = find_grid(history)
    if grid is None:
        return None
    last = {key: [*history[name].values()][-1] for key, name in grid.names.items()}
    values = [[last.get((x, y)) for x in grid.columns] for y in grid.rows]
    return HeatMap(
        title=f"{subject.title()}\nBy {_word(grid.x)} and {_word(grid.y)}",
        x=_AXES.get(grid.x, grid.x),
        y=_AXES.get(grid.y, grid.y),
        label=SCORES[grid.metric],
        columns=[f"{each:,}" for each in grid.columns],
        rows=[str(each) for each in grid.rows],
        values=values,
        texts=[["" if each is None else f"{each:.2f}" for each in row] for row in values],
        share=True,
    ).picture()


def over_rows(history: History, grid: Grid) -> History:
    """The mean over the second number, by the first, as `len_1024`."""
    means: History = {}
    for x in grid.columns:
        columns = [history[name] for (first, _), name in grid.names.items() if first == x]
        steps = [step for step in columns[0] if all(step in each for each in columns)]
        means[f"{grid.x}_{x}"] = {
            step: sum(each[step] for each in columns) / len(columns) for step in steps
        }
    return means


def _word(axis: str) -> str:
    return {"len": "length", "kv": "pairs"}.get(axis, axis)
