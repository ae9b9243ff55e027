"""Lightning's view of a run's metrics."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from statelab_mlflow.journal import Journal

__all__ = ["JournalLogger"]


class JournalLogger(Logger):
    """Writes metrics into the run's journal, which costs the training thread one small write.

    Lightning's own MLFlowLogger calls the store at each step, deletes characters from names, and
    sets the run's status; here whoever started the run does that, once.

    Args:
        journal: The run's.
        folder: The run's, `run_dir/experiment/id`.
    """

    def __init__(self, journal: Journal, folder: Path) -> None:
        super().__init__()
        self._journal = journal
        self._folder = folder

    @property
    def name(self) -> str:
        """The experiment; with `save_dir` and `version` it makes up the run's folder."""
        return self._folder.parent.name

    @property
    def version(self) -> str:
        """The run's id."""
        return self._folder.name

    @property
    def save_dir(self) -> str:
        """The folder of all runs."""
        return str(self._folder.parent.parent)

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return str(self._folder)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the metrics of an optimizer step."""
        self._journal.append(metrics, step or 0)

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: the run has its configuration from the start."""
