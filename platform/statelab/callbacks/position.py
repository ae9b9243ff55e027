"""Counts finished batches in the data's position; stands before whatever saves a checkpoint."""

from __future__ import annotations

from typing import Any

import lightning as L

__all__ = ["Position"]


class Position(L.Callback):
    """Advances the data by one at the end of each batch."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Count the batch."""
        trainer.datamodule.advance()  # type: ignore[attr-defined]
