"""Lightning's view of a run's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from statelab.runs.loggers import RunLogger
from statelab.runs.metric_history import Recorded
from statelab_mlflow.journal import Journal

__all__ = ["JournalLogger"]


class JournalLogger(RunLogger):
    """Writes metrics into the run's journal, which costs the training thread one small write.

    Lightning's own MLFlowLogger calls the store at each step, deletes characters from names, and
    sets the run's status; here whoever started the run does that, once.

    Args:
        journal: The run's.
        folder: The run's, `run_dir/experiment/id`.
        recorded: What the run has from before it was broken off.
    """

    def __init__(self, journal: Journal, folder: Path, recorded: Recorded) -> None:
        super().__init__(folder, recorded)
        self._journal = journal

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Append them."""
        self._journal.append(metrics, step)
