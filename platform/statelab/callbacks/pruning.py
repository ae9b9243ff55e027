"""A study's trial that does worse than others stops, on all processes at the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lightning as L
from torch import Tensor

from statelab.signals import Pruned

__all__ = ["Pruning"]


class Pruning(L.Callback):
    """Asks after each validation; the first process knows the study, and tells the others.

    Args:
        prune: Is asked with the metrics and the optimizer steps done; None where nobody is.
    """

    def __init__(self, prune: Callable[[Mapping[str, Tensor], int], bool] | None) -> None:
        self.prune = prune

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ask, or be told.

        Raises:
            Pruned: On every process, if the run is to stop.
        """
        step = trainer.global_step
        stop = self.prune is not None and self.prune(trainer.callback_metrics, step)
        if trainer.strategy.broadcast(stop, src=0):
            raise Pruned(step)
