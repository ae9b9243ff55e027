"""The validation split's metrics: those that training logged, to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from statelab.options import Section
from statelab.registries import eval_tasks
from statelab.tasks.task import EvalTask, Report

if TYPE_CHECKING:
    from statelab.tasks.trained import Trained

__all__ = ["Validation", "ValidationConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationConfig(Section):
    """No option of its own: `data.*` and `trainer.*` say it all."""


@eval_tasks.register("validation", config=ValidationConfig)
class Validation(EvalTask):
    """The metrics of the validation split; the run has those of its own data already."""

    recorded: ClassVar[bool] = False

    def run(self, trained: Trained) -> Report:
        """Validate."""
        # Lightning takes a second to import.
        from statelab.data.lightning_data import build_data

        data = build_data(trained.config)
        trained.trainer.validate(trained.module, datamodule=data, verbose=False)
        found = trained.trainer.callback_metrics
        return Report(metrics={name: float(value) for name, value in found.items()})
