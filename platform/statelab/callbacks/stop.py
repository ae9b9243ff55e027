"""Ctrl-C and SIGTERM end a run at the next optimizer step, saved and named for what it was."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import lightning as L

from statelab.callbacks.checkpoints import Checkpoints

__all__ = ["GracefulStop", "Stopped"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - what happened is no error
    """Training was stopped from outside, at an optimizer step, and saved."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received.name)
        self.received = received


class GracefulStop(L.Callback):
    """Finishes the step, saves, and stops; a second Ctrl-C stops at once.

    Lightning's own handlers report a killed run as done; these replace them while it trains.

    Args:
        checkpoints: Saves the last step.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals over; they can only be taken in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._receive) for each in _SIGNALS}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Stop where an optimizer step has just been done.

        Raises:
            Stopped: On every process at the same step, whichever one got the signal.
        """
        stop = trainer.strategy.reduce_boolean_decision(self.received is not None, all=False)
        if stop and (args[-1] + 1) % trainer.accumulate_grad_batches == 0:
            self.checkpoints.save_last(trainer)
            raise Stopped(self.received or signal.SIGTERM)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
