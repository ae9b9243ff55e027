"""Stops a run whose loss or gradient is not finite, and keeps what it takes to find out why."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from statelab.errors import NonFiniteError
from statelab.language_model import LanguageModel
from statelab.nonfinite import first_nonfinite
from statelab.strategies import gathered

__all__ = ["NanGuard"]

log = logging.getLogger(__name__)


class NanGuard(L.Callback):
    """Counts the steps in a row that `LanguageModel` has not applied, and stops after some.

    Such a step counts as one: schedule, data and metrics go on as if it had been applied. Stands
    before whatever saves a checkpoint.

    Args:
        folder: The run's; gets `nan_batch.pt` and `checkpoints/nan.ckpt`.
        patience: The run stops at so many such steps in a row.
    """

    def __init__(self, folder: Path, patience: int) -> None:
        self.batch = folder / "nan_batch.pt"
        self.weights = folder / "checkpoints" / "nan.ckpt"
        self.patience = patience
        self.skipped = 0
        self._step = 0
        self._batches: list[dict[str, Tensor]] = []

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.skipped = state_dict["skipped"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a step."""
        self._step = trainer.global_step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Hold the batches of the step."""
        self._batches.append(batch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Count the step, if one is done.

        Raises:
            NonFiniteError: On every process alike, when there have been too many.
        """
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        batches, self._batches = self._batches, []
        assert isinstance(pl_module, LanguageModel)
        if pl_module.update_applied:
            self.skipped = 0
            return
        self.skipped += 1
        if self.skipped >= self.patience:
            self._stop(trainer, pl_module, batches)
        if trainer.is_global_zero:
            log.warning(
                "step %d: loss or gradient is not finite, and the update is not applied",
                self._step,
            )

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let no weights into a checkpoint that are not finite.

        Raises:
            NonFiniteError: Before anything is written.
        """
        weights: dict[str, Tensor] = checkpoint["state_dict"]
        finite = [each.isfinite().all() for each in weights.values()]
        if finite and not torch.stack(finite).all():
            first = next(name for name, each in zip(weights, finite, strict=True) if not each)
            raise NonFiniteError(
                f"step {trainer.global_step}: an update has made "
                f"{first.removeprefix('model.')} infinite or no number, and no checkpoint is "
                "written of it; the last one stays. Try a lower optim.lr."
            )

    def _stop(
        self, trainer: L.Trainer, model: LanguageModel, batches: list[dict[str, Tensor]]
    ) -> None:
        with trainer.precision_plugin.forward_context(), gathered(model):
            mine = _search(model, batches)
        # Each process has batches of its own; the first one that found something speaks.
        ranks = range(trainer.world_size)
        found = [trainer.strategy.broadcast(mine, src=rank) for rank in ranks]
        nothing = "the sum of the gradients of its batches", batches[0]
        culprit, batch = next((each for each in found if each), nothing)
        if trainer.is_global_zero:
            torch.save({name: each.cpu() for name, each in batch.items()}, self.batch)
        trainer.save_checkpoint(self.weights)
        raise NonFiniteError(
            f"step {self._step}: {culprit} is infinite or no number, and nothing before it is. The "
            f"update is not applied, and the run stops (trainer.nan_patience={self.patience}). Try "
            "a lower optim.lr, or a longer optim.warmup_steps. To run it again: the batch is in "
            f"{self.batch}, the weights are in {self.weights}."
        )


def _search(
    model: LanguageModel, batches: list[dict[str, Tensor]]
) -> tuple[str, dict[str, Tensor]] | None:
    """What is not finite first, and the batch that it is in."""
    for batch in batches:
        if (found := first_nonfinite(model, batch)) is not None:
            return found, batch
    return None
