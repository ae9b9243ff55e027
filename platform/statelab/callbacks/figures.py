"""The figures of a run, drawn when it ends."""

from __future__ import annotations

import logging

import lightning as L

from statelab.callbacks.diagnostics import Diagnostics
from statelab.config import Config
from statelab.examination import examine
from statelab.runs.tracking import Run

__all__ = ["Figures"]

log = logging.getLogger(__name__)


class Figures(L.Callback):
    """Examines the model as the last step has left it, and draws; a failure fails no run.

    Args:
        run: Whose folder gets `figures`, and whose artifacts do.
        config: The run's.
        pair: The rules' names, for the titles.
        diagnostics: Knows the sequences to look at.
    """

    def __init__(self, run: Run, config: Config, pair: str, diagnostics: Diagnostics) -> None:
        self.run = run
        self.config = config
        self.pair = pair
        self.diagnostics = diagnostics

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Examine on every process; the first one draws."""
        if self.diagnostics.tokens is None:
            return
        try:
            self._draw(trainer, pl_module)
        except Exception as error:
            log.warning("no figures: %s: %s", type(error).__name__, error)

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        tokens = self.diagnostics.tokens
        with trainer.precision_plugin.forward_context():
            seen = examine(pl_module.model, self.config, tokens)  # type: ignore[arg-type]
        if not trainer.is_global_zero:
            return
        # Matplotlib takes a second to import.
        from statelab.figures.report import draw
        from statelab.figures.style import Subject

        subject = Subject(
            pair=self.pair, parameters=seen.parameters, moment=f"step {trainer.global_step:,}"
        )
        for file in draw(seen, subject, self.run.folder, self.run.folder / "figures"):
            self.run.log_artifact(file, "figures")
