"""A run's metrics over its steps, read back from its folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statelab.tracking import METRICS

__all__ = ["History", "metric_history", "read_lines"]

History = dict[str, dict[int, float]]
"""Metric by name, value by step, in the order of steps."""


def metric_history(folder: Path) -> History:
    """The metrics of a run, tracked or not; empty where there are none.

    A step that was done twice, before and after a resume, has its last value.
    """
    history: History = {}
    for name, step, value in _rows(folder):
        history.setdefault(name, {})[step] = value
    return {name: dict(sorted(values.items())) for name, values in history.items()}


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line; none if there is no file, or the line is cut off."""
    if file.is_file():
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n"))


def _rows(folder: Path) -> Iterator[tuple[str, int, float]]:
    for row in read_lines(folder / METRICS):
        yield row["key"], row["step"], row["value"]
    untracked = folder / "metrics.csv"
    if untracked.is_file():
        with untracked.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                step = int(line.pop("step"))
                yield from ((name, step, float(value)) for name, value in line.items() if value)
