"""A trial that does worse than the others at the same step is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from optuna import Trial
from optuna.exceptions import StorageInternalError
from torch import Tensor

from statelab.errors import UnknownNameError, near_miss

__all__ = ["Pruner"]


@dataclass(frozen=True)
class Pruner:
    """Reports a metric after each validation, by optimizer steps done, and asks the study.

    Attributes:
        trial: The trial.
        metric: What is reported.
    """

    trial: Trial
    metric: str

    def __call__(self, metrics: Mapping[str, Tensor], step: int) -> bool:
        """Whether the trial is to stop; without an answer of the database it goes on.

        Raises:
            UnknownNameError: If no validation gives the metric.
        """
        if self.metric not in metrics:
            raise UnknownNameError(
                f"search.metric={self.metric}: no validation gives it."
                f"{near_miss(self.metric, metrics)} There are: {', '.join(sorted(metrics))}."
            )
        self.trial.report(float(metrics[self.metric]), step=step)
        with suppress(StorageInternalError):
            return self.trial.should_prune()
        return False
