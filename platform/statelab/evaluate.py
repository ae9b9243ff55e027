"""Evaluate a run's checkpoint by a task, the validation split's metrics if none is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statelab.loading import load_section
from statelab.options import keys_of
from statelab.registries import eval_tasks
from statelab.runs.stored import StoredRun
from statelab.tasks.record import write_report
from statelab.tasks.task import Report
from statelab.tasks.trained import load_checkpoint, load_trained
from statelab.train import Result

__all__ = ["Evaluation", "evaluate", "load_checkpoint"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation(Result):
    """What an evaluation found, as a run's result.

    Attributes:
        task: The task.
        report: All that it found.
        files: What was written.
    """

    task: str
    report: Report
    files: Sequence[Path] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        report = {name: dict(each) for name, each in _parts(self.report).items()}
        return {
            **Result.to_json(self),
            "task": self.task,
            **report,
            "files": [str(file) for file in self.files],
        }


def evaluate(
    run: StoredRun,
    *,
    task: str = "validation",
    checkpoint: str = "last",
    overrides: Iterable[str] = (),
) -> Evaluation:
    """What a task finds in a checkpoint; with no more said, the metrics that training logged.

    Args:
        run: The run.
        task: One of `eval_tasks`, or `module:Class`, or `file.py:Class`.
        checkpoint: "last" or "best".
        overrides: Options of the task, and `data.*` and `trainer.*` keys that differ from the
            run's.

    Raises:
        StatelabError: If the run or its checkpoint can't be read, a key can't be changed, or the
            task refuses its options or the model.
    """
    plugin = eval_tasks.get(task)
    own, others = _split(overrides, {key.name for key in keys_of(plugin.config)})
    looking = plugin.cls(load_section(plugin.config, own))
    trained = load_trained(run, checkpoint=checkpoint, overrides=others)
    report = looking.run(trained)
    files = write_report(trained, plugin.name, looking, report) if looking.recorded else []
    return Evaluation(
        run_id=run.id,
        status="FINISHED",
        folder=run.folder,
        checkpoint=trained.file,
        best_checkpoint=None,
        metrics=dict(report.metrics),
        task=plugin.name,
        report=report,
        files=files,
    )


def _split(overrides: Iterable[str], options: set[str]) -> tuple[list[str], list[str]]:
    """Arguments that are a task's options, or meant so, and those of the configuration."""
    own: list[str] = []
    others: list[str] = []
    for each in overrides:
        key = each.partition("=")[0]
        meant = key in options or (options and "." not in key)
        (own if meant else others).append(each)
    return own, others


def _parts(report: Report) -> Mapping[str, Mapping[str, Any]]:
    return {"setup": report.setup, "tables": report.tables}
