"""The validation metrics by slice: of other lengths, depths or sizes than the run's own, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statelab.options import Section
from statelab.registries import eval_tasks
from statelab.tasks.task import EvalTask, Report
from statelab.tasks.validation import Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from statelab.figures.style import Subject
    from statelab.tasks.trained import Trained

__all__ = ["Slices", "SlicesConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicesConfig(Section):
    """No option of its own: `data.*` says which slices there are."""


@eval_tasks.register("slices", config=SlicesConfig)
class Slices(EvalTask):
    """Accuracy and exact match by slice, recorded with the run.

        slices/exact                            over all examples
        slices/exact/len_4096_depth_50          of a slice
        slices/accuracy/len_4096_depth_50       share of tokens

    Slices that are called by two numbers are drawn as a map.
    """

    config: SlicesConfig

    def run(self, trained: Trained) -> Report:
        """Validate."""
        found = Validation(self.config).run(trained).metrics
        rows: dict[str, dict[str, str | float]] = {}
        for name, value in found.items():
            _, metric, *slices = name.split("/")
            for each in slices:
                rows.setdefault(each, {"slice": each})[metric] = value
        return Report(
            metrics={f"slices/{name.removeprefix('val/')}": each for name, each in found.items()},
            setup={"data": trained.config.data.name, "seq_len": trained.config.data.seq_len},
            tables={"by slice": list(rows.values())},
        )

    def draw(self, report: Report, subject: Subject) -> Mapping[str, Figure]:
        """The map, where there is one."""
        from statelab.figures.grid import slice_map

        metrics = report.metrics.items()
        history = {f"val/{name.removeprefix('slices/')}": {0: each} for name, each in metrics}
        figure = slice_map(history, subject)
        return {} if figure is None else {"slice_map": figure}
