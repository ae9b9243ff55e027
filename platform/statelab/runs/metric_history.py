"""A run's metrics over its steps, read back from its folder."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from statelab.runs.tracking import METRICS

__all__ = [
    "History",
    "Recorded",
    "cut_off_half_a_line",
    "last_metrics",
    "metric_history",
    "read_lines",
]

_LONGEST_LINE = 1_000_000  # bytes

History = dict[str, dict[int, float]]
"""Metric by name, value by step, in the order of steps."""


def metric_history(folder: Path) -> History:
    """The metrics of a run, tracked or not; empty where there are none."""
    history: History = {}
    for name, step, value in _rows(folder):
        history.setdefault(name, {})[step] = value
    return {name: dict(sorted(values.items())) for name, values in history.items()}


def last_metrics(folder: Path) -> dict[str, float]:
    """The last of each metric of a run, but for those of single layers."""
    history = metric_history(folder)
    return {k: [*values.values()][-1] for k, values in history.items() if "/layer_" not in k}


class Recorded:
    """What a run has recorded since a step, so that no metric gets a second value at a step.

    A run that was broken off goes on from a checkpoint, and does again the steps that came after.

    Args:
        folder: The run's.
        step: The first step to know of.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._known = {(name, at) for name, at, _ in _rows(folder) if at >= step}

    def new(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """Those of the metrics that have no value at that step yet."""
        return {name: each for name, each in metrics.items() if (name, step) not in self._known}


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line; none if there is no file, or the line is cut off."""
    if file.is_file():
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n"))


def cut_off_half_a_line(file: Path) -> None:
    """Take away what a crash has left at the end of a file, so that the next line stands alone."""
    if not file.is_file():
        return
    with file.open("r+b") as lines:
        size = lines.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST_LINE)
        lines.seek(start)
        tail = lines.read()
        if not tail.endswith(b"\n"):
            lines.truncate(start + tail.rfind(b"\n") + 1)


def _rows(folder: Path) -> Iterator[tuple[str, int, float]]:
    for row in read_lines(folder / METRICS):
        yield row["key"], row["step"], row["value"]
    untracked = folder / "metrics.csv"
    if untracked.is_file():
        with untracked.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(row for row in file if row.endswith("\n")):
                step = int(line.pop("step"))
                yield from ((name, step, float(value)) for name, value in line.items() if value)
