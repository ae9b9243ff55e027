"""Where a report goes: into the run's folder, and to its tracking store."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from statelab.runs.addition import add_to_run
from statelab.runs.naming import pair_name
from statelab.runs.tracking import make_folder
from statelab.tasks.task import EvalTask, Report
from statelab.tasks.trained import Trained

__all__ = ["write_report"]


def write_report(trained: Trained, name: str, task: EvalTask, report: Report) -> list[Path]:
    """Write `eval/<task>/report.json` and the figures into the run's folder, and record them.

    What the same task wrote before is replaced.

    Args:
        trained: Whose report it is.
        name: The task's.
        task: Draws the figures.
        report: What it found.

    Returns:
        The files.

    Raises:
        RunError: If the folder can't be written.
    """
    place = f"eval/{name}"
    folder = trained.run.folder / place
    make_folder(folder, str(folder.parents[3]))
    for old in folder.iterdir():
        old.unlink()
    file = folder / "report.json"
    whole = {"task": name, "checkpoint": trained.file.name, "step": trained.step}
    whole |= dataclasses.asdict(report)
    file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    # Matplotlib takes a second to import: only now, when nothing else can be wrong.
    from statelab.figures.style import Subject, save

    subject = Subject(
        pair=pair_name(trained.config),
        parameters=sum(each.numel() for each in trained.model.parameters()),
        moment=f"step {trained.step:,}",
    )
    files = [file]
    for stem, figure in task.draw(report, subject).items():
        files.append(folder / f"{stem}.png")
        save(figure, files[-1])
    add_to_run(trained.run.folder, report.metrics, trained.step, dict.fromkeys(files, place))
    return files
