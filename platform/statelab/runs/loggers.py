"""Lightning's view of a run's metrics: where they are written, and that they are written once."""

from __future__ import annotations

import csv
import os
from abc import abstractmethod
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from statelab.runs.metric_history import Recorded, cut_off_half_a_line

__all__ = ["CsvLogger", "RunLogger"]


class RunLogger(Logger):
    """Writes the metrics of an optimizer step, but for those that the run has recorded before.

    Args:
        folder: The run's, `run_dir/experiment/id`.
        recorded: What the run has from before it was broken off.
    """

    def __init__(self, folder: Path, recorded: Recorded) -> None:
        super().__init__()
        self.folder = folder
        self._recorded = recorded

    @property
    def name(self) -> str:
        """The experiment; with `save_dir` and `version` it makes up the run's folder."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """The run's id."""
        return self.folder.name

    @property
    def save_dir(self) -> str:
        """The folder of all runs."""
        return str(self.folder.parent.parent)

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return str(self.folder)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the metrics of an optimizer step."""
        if new := self._recorded.new(metrics, step or 0):
            self.write(new, step or 0)

    @abstractmethod
    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write them, so that a process that is killed now has not lost them."""

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: the run has its configuration from the start."""


class CsvLogger(RunLogger):
    """Appends a row to `metrics.csv`; a metric of a new name rewrites the file.

    Lightning's own deletes the file that it finds, and keeps a hundred steps in memory.
    """

    def __init__(self, folder: Path, recorded: Recorded) -> None:
        super().__init__(folder, recorded)
        self.file = folder / "metrics.csv"
        cut_off_half_a_line(self.file)
        self._columns = self._read()[0]

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a row."""
        row = {"step": step, **metrics}
        if new := sorted(row.keys() - set(self._columns)):
            self._widen(new)
        with self.file.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _widen(self, new: list[str]) -> None:
        _, rows = self._read()
        self._columns += new
        aside = self.file.with_name(f".{self.file.name}")
        with aside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(aside, self.file)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """The names of the columns, and all rows."""
        if not self.file.is_file():
            return [], []
        with self.file.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            return list(reader.fieldnames or ()), list(reader)
