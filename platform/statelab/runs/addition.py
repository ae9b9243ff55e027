"""What is added to a run after its end: metrics and files of an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from statelab.errors import StatelabError
from statelab.runs.lock import locked
from statelab.runs.metric_history import History, Recorded, metric_history
from statelab.runs.tracking import METRICS, tracker

__all__ = ["add_to_run"]

log = logging.getLogger(__name__)


def add_to_run(
    folder: Path, metrics: Mapping[str, float], step: int, files: Mapping[Path, str]
) -> None:
    """Record metrics and files with a run; its status, and what it has, stay as they are.

    What the run has already, with the same value, is not recorded twice. A store of metrics can
    take no value back, and a step never gets two: other values than the run has at that step
    replace them at the next free one. A run that is being trained is left alone, which a line of
    the log says; so does one where the store is away.

    Args:
        folder: The run's.
        metrics: By name.
        step: The optimizer step that they are of.
        files: Of the run's folder, each with the folder of artifacts that it belongs to.
    """
    try:
        with locked(folder):
            history = metric_history(folder)
            step = _free_step(history, metrics, step)
            new = Recorded(folder, step).new(metrics, step)
            if (folder / METRICS).is_file():
                tracker().add(folder, metrics=new, step=step, files=files)
            elif new:
                # Lightning takes a second to import.
                from statelab.runs.loggers import CsvLogger

                CsvLogger(folder, Recorded(folder, step)).log_metrics(new, step)
    except StatelabError as error:
        log.warning("not recorded with run %s: %s", folder.name, error)


def _free_step(history: History, metrics: Mapping[str, float], step: int) -> int:
    """The step, or the first one behind it where no metric has another value."""
    taken = {at for name in metrics for at in history.get(name, ())}
    while step + 1 in taken:
        step += 1
    known = [(history[name][step], metrics[name]) for name in metrics if step in _at(history, name)]
    return step if all(_same(old, new) for old, new in known) else step + 1


def _at(history: History, name: str) -> Mapping[int, float]:
    return history.get(name, {})


def _same(old: float, new: float) -> bool:
    return old == new or (old != old and new != new)
