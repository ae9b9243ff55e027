"""`last.ckpt` and `best.ckpt`, written at optimizer steps only and never half."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch import Tensor

from statelab.errors import RunError

__all__ = ["AtomicCheckpointIO", "Checkpoints"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, then puts it there in one move.

    Whoever reads finds the old file or the new one, whole, whatever happens in between.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            RunError: If the disk is full, say; the old file stays.
        """
        target = Path(path)
        try:
            self._replace(target, checkpoint)
        except (OSError, RuntimeError) as error:
            # Torch's writer turns some of the system's errors into its own.
            why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise RunError(
                f"checkpoint {target} can't be written: {why}. Is the disk full? "
                "The checkpoint before it stays."
            ) from error

    def _replace(self, target: Path, checkpoint: dict[str, Any]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not `tempfile`, whose files nobody else may read: a team shares its checkpoints.
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Checkpoints(L.Callback):
    """Saves `last.ckpt` at each validation and every so many steps, `best.ckpt` after validation.

    `previous.ckpt` is the `last.ckpt` before, in case that the disk damages one.

    Args:
        folder: Where they go.
        every: Optimizer steps between saves beside those at validations; None is none.
        val_every: Optimizer steps between validations.
        monitor: The metric that is best when it is least.
    """

    def __init__(
        self, folder: Path, *, every: int | None, val_every: int, monitor: str = "val/loss"
    ) -> None:
        self.last = folder / "last.ckpt"
        self.previous = folder / "previous.ckpt"
        self.best = folder / "best.ckpt"
        self.every = every
        self.val_every = val_every
        self.monitor = monitor
        self.best_value = float("inf")
        self.validated = 0

    def state_dict(self) -> dict[str, Any]:
        """The best value so far, and the step of the last validation."""
        return {"best_value": self.best_value, "validated": self.validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best_value = state_dict["best_value"]
        self.validated = state_dict["validated"]

    def is_due(self, step: int) -> bool:
        """Whether that step is one to validate after, and wasn't yet."""
        return step % self.val_every == 0 and step != self.validated

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Save every so many optimizer steps, where no validation will."""
        step = trainer.global_step
        at_step = (args[-1] + 1) % trainer.accumulate_grad_batches == 0
        if step >= trainer.max_steps:
            # Lightning validates once more before a stop, so that a run ends with its metrics.
            trainer.should_stop = True
        elif self.every and at_step and step % self.every == 0 and step % self.val_every:
            self.save_last(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save what was just validated."""
        value = float(_scalar(trainer.callback_metrics[self.monitor]))
        better = value < self.best_value
        self.validated = trainer.global_step
        # The best first: a `last.ckpt` that knows of a better value has a `best.ckpt` with it.
        if better:
            self.best_value = value
            trainer.save_checkpoint(self.best)
        self.save_last(trainer)

    def save_last(self, trainer: L.Trainer) -> None:
        """Write `last.ckpt` now; call it at an optimizer step."""
        if trainer.is_global_zero:
            _keep(self.last, self.previous)
        trainer.save_checkpoint(self.last)


def _keep(file: Path, name: Path) -> None:
    """Give a file a second name, in one move."""
    if file.exists():
        aside = name.with_name(f".{name.name}.link")
        aside.unlink(missing_ok=True)
        try:
            os.link(file, aside)
        except OSError:
            # A file system without links: for a moment it has the second name alone.
            os.replace(file, name)
        else:
            os.replace(aside, name)


def _scalar(value: Tensor | float) -> float:
    return value.item() if isinstance(value, Tensor) else value
