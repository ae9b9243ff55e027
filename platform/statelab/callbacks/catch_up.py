"""The validation that a run was broken off before."""

from __future__ import annotations

import lightning as L

from statelab.callbacks.checkpoints import Checkpoints

__all__ = ["CatchUp"]


class CatchUp(L.Callback):
    """Validates at the start of a continued run, where that is due; stands behind all others.

    A run whose steps are all done validates once more, and so ends with its metrics.

    Args:
        checkpoints: Knows when the run validates and did so last.
        steps: Of the whole run.
    """

    def __init__(self, checkpoints: Checkpoints, steps: int) -> None:
        self.checkpoints = checkpoints
        self.steps = steps

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validate, and stop where nothing is left to do."""
        step = trainer.global_step
        is_over = step >= self.steps
        if is_over or self.checkpoints.is_due(step):
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True
        trainer.should_stop = is_over
