"""The learning rate of a continued run, which may end at another step than it was to."""

from __future__ import annotations

import lightning as L

__all__ = ["Schedule"]


class Schedule(L.Callback):
    """Takes the learning rate from the schedule, not from the checkpoint."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Set it for the first step; the schedule itself sets it for all others."""
        for config in trainer.lr_scheduler_configs:
            schedule = config.scheduler
            for group, peak, factor in zip(
                schedule.optimizer.param_groups,
                schedule.base_lrs,
                schedule.lr_lambdas,  # type: ignore[union-attr]
                strict=True,
            ):
                group["lr"] = peak * factor(schedule.last_epoch)
