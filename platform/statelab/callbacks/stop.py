"""Signals end a run at the next optimizer step, saved and named for what it was."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from types import FrameType
from typing import Any

import lightning as L
import torch

from statelab.callbacks.checkpoints import Checkpoints
from statelab.signals import Stopped, handling

__all__ = ["GracefulStop"]


class GracefulStop(L.Callback):
    """Finishes the step, saves, and stops; a second signal stops at once.

    Lightning's own handlers report a killed run as done; these replace them while it trains.

    Args:
        checkpoints: Saves the last step.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: int | None = None
        self._handling = ExitStack()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals over."""
        self._handling.enter_context(handling(self._receive))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Stop where an optimizer step has just been done.

        Raises:
            Stopped: On every process at the same step, whichever one got the signal.
        """
        self._stop(trainer, at_step=(args[-1] + 1) % trainer.accumulate_grad_batches == 0)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Stop in the middle of a validation, which comes after an optimizer step."""
        self._stop(trainer, at_step=True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._handling.close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back; nothing is torn down after an exception."""
        self._handling.close()

    def _stop(self, trainer: L.Trainer, at_step: bool) -> None:
        received = self.received or 0
        if trainer.world_size > 1:
            # A signal comes to one process or to all, at one step or at the next.
            number = torch.tensor(received, device=trainer.strategy.root_device)
            received = int(trainer.strategy.reduce(number, reduce_op="max"))
        if received and at_step:
            self.checkpoints.save_last(trainer)
            raise Stopped(received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise Stopped(number)
        self.received = number
        # Not through a logger: a signal may have come while one holds its lock.
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: finishes the step and saves; once more stops at once\n".encode())
