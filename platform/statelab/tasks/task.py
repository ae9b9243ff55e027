"""What an evaluation task is: it looks at a trained model, and reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from statelab.figures.style import Subject
    from statelab.tasks.trained import Trained

__all__ = ["EvalTask", "Report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a task found; plain values, as JSON has them.

    Attributes:
        metrics: By name, such as `length/ppl/len_4096`. They go to the run's tracking store too.
        setup: What was measured, and on what.
        tables: Rows by title; a row maps columns to cells.
        data: What the figures are drawn of, beside the tables.
    """

    metrics: Mapping[str, float]
    setup: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


class EvalTask(ABC):
    """One way to look at a trained model. Built once, of its options; then `run`, then `draw`.

    An installed distribution names its module in the entry-point group `statelab.eval_tasks`, and
    the class is registered there with the dataclass of its options:

        @eval_tasks.register("surprise", config=SurpriseConfig)
        class Surprise(EvalTask): ...

    Its options are keys of `statelab eval task=surprise`, and of `statelab keys`.

    Attributes:
        recorded: Whether a report is written into the run's folder and its tracking store.
    """

    recorded: ClassVar[bool] = True

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def run(self, trained: Trained) -> Report:
        """Look at the model.

        Raises:
            StatelabError: On something the user can mend.
        """

    def draw(self, report: Report, subject: Subject) -> Mapping[str, Figure]:
        """The figures of a report, by file name without its ending.

        Args:
            report: What `run` returned.
            subject: For the titles.
        """
        return {}
