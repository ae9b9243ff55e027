"""Where a run stands: batches finished, and Lightning's counters to match."""

from __future__ import annotations

from typing import Any

import lightning as L

__all__ = ["Position"]


class Position(L.Callback):
    """Advances the data by one at the end of each batch; stands before whatever saves."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Count the batch."""
        trainer.datamodule.advance()  # type: ignore[attr-defined]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set Lightning's counters between two batches of its one endless epoch.

        What it saved depends on the hook that it was asked in; from there it would count a batch
        twice, leave a validation out, or go on with one in the middle, without its metrics.
        """
        data = type(trainer.datamodule).__qualname__  # type: ignore[attr-defined]
        finished = checkpoint[data]["batches_finished"]
        loops = checkpoint["loops"]["fit_loop"]
        loops["epoch_loop.batch_progress"] = {**_counted(finished), "is_last_batch": False}
        loops["epoch_loop.val_loop.batch_progress"] = {**_counted(0), "is_last_batch": False}


def _counted(times: int) -> dict[str, dict[str, int]]:
    counts = dict.fromkeys(("ready", "started", "processed", "completed"), times)
    return {"total": counts, "current": dict(counts)}
