"""A trial that does worse than the others at the same step is stopped."""

from __future__ import annotations

from contextlib import suppress

import lightning as L
from optuna import Trial
from optuna.exceptions import StorageInternalError

from statelab.errors import ConfigError, near_miss
from statelab.signals import Pruned

__all__ = ["Pruning"]


class Pruning(L.Callback):
    """Reports a metric after each validation, by optimizer steps done, and stops a bad trial.

    The first process has the trial; all of them stop at the same step.

    Args:
        trial: Is asked on the first process.
        metric: What is reported.
    """

    def __init__(self, trial: Trial, metric: str) -> None:
        self.trial = trial
        self.metric = metric

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report, and ask.

        Raises:
            Pruned: On every process, if the trial is to be stopped.
            ConfigError: If no validation gives the metric.
        """
        known = trainer.callback_metrics
        if self.metric not in known:
            raise ConfigError(
                f"search.metric={self.metric}: no validation gives it."
                f"{near_miss(self.metric, known)} There are: {', '.join(sorted(known))}."
            )
        stop = False
        if trainer.is_global_zero:
            self.trial.report(float(known[self.metric]), step=trainer.global_step)
            # Without an answer of the database the trial goes on.
            with suppress(StorageInternalError):
                stop = self.trial.should_prune()
        if trainer.strategy.broadcast(stop, src=0):
            raise Pruned(trainer.global_step)
