"""Lightning's rich progress bar over all optimizer steps, with tokens/s and the time left."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from statelab.callbacks.history import History

__all__ = ["ProgressBar"]


class ProgressBar(RichProgressBar):
    """One bar a run, on standard error.

    Args:
        name: What the bar says of the run.
        history: Knows the speed.
    """

    def __init__(self, name: str, history: History) -> None:
        super().__init__(leave=False, console_kwargs={"stderr": True})
        self.name = name
        self.history = history

    @property
    def total_train_batches(self) -> int | float:
        """Batches of the whole run, not of an epoch."""
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def configure_columns(self, trainer: L.Trainer) -> list[Any]:
        """Name, bar, batches, speed, time left; the loss comes from Lightning's metrics column."""
        return [
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(self.history),
            TimeRemainingColumn(),
        ]

    def _get_train_description(self, current_epoch: int) -> str:
        return self.name

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Any:
        """The metrics without Lightning's version number."""
        items = super().get_metrics(trainer, pl_module)
        items.pop("v_num", None)
        return items


class _Speed(ProgressColumn):
    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history

    def render(self, task: Task) -> Text:
        """Tokens a second in the last step."""
        return Text(f"{self.history.tokens_per_second:,.0f} tokens/s", style="progress.data.speed")
