"""What the rules say of themselves, once a validation: metrics by layer, and distributions."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from statelab.data.packing import sequences
from statelab.probe import diagnose
from statelab.runs.metric_history import cut_off_half_a_line, read_lines

__all__ = ["DISTRIBUTIONS", "QUANTILES", "Diagnostics"]

#: The file in the run's folder: an object a line with step, layer, name and quantiles.
DISTRIBUTIONS = "distributions.jsonl"
QUANTILES = tuple(i / 20 for i in range(21))

_SEQUENCES = 4
_NUMBERS = 1_000_000  # torch.quantile takes 16 times that, in seconds

log = logging.getLogger(__name__)


class Diagnostics(L.Callback):
    """Runs the first sequences of the validation split once more, and asks each rule.

    `read/lambda` becomes the metrics `read/lambda_mean/layer_0` and `read/lambda_std/layer_0`, a
    single number such as `read/sigma_max` the metric `read/sigma_max/layer_0`. A rule that fails
    here fails no run.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / DISTRIBUTIONS
        self.tokens: Tensor | None = None
        self._works = True
        cut_off_half_a_line(self.file)
        self._recorded = {_identity(row) for row in read_lines(self.file)}

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep what is looked at, the same each time."""
        if batch_idx == 0:
            self.tokens = sequences(batch, _SEQUENCES)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ask, on every process; the first one writes."""
        if self.tokens is None or not self._works:
            return
        try:
            with trainer.precision_plugin.forward_context():
                found = diagnose(pl_module.model, self.tokens)  # type: ignore[arg-type]
        except Exception as error:
            self._works = False
            log.warning("no diagnostics: %s: %s", type(error).__name__, error)
            return
        if trainer.is_global_zero:
            self._write(trainer, found)

    def _write(self, trainer: L.Trainer, found: Mapping[int, Mapping[str, Tensor]]) -> None:
        metrics: dict[str, float] = {}
        rows = []
        for layer, named in found.items():
            for name, each in named.items():
                metrics |= {f"{key}/layer_{layer}": x for key, x in _numbers(name, each).items()}
                if each.ndim:
                    rows.append(
                        {
                            "step": trainer.global_step,
                            "layer": layer,
                            "name": name,
                            "quantiles": _quantiles(each),
                        }
                    )
        if trainer.logger is not None and metrics:
            trainer.logger.log_metrics(metrics, step=trainer.global_step)
        # A continued run may do a step again that it has recorded.
        new = [row for row in rows if _identity(row) not in self._recorded]
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in new)


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["step"], row["layer"], row["name"]


def _numbers(name: str, values: Tensor) -> dict[str, float]:
    if values.ndim == 0:
        return {name: float(values)}
    std, mean = torch.std_mean(values, correction=0)
    return {f"{name}_mean": float(mean), f"{name}_std": float(std)}


def _quantiles(values: Tensor) -> list[float]:
    flat = values.flatten()
    # Every so many numbers: a draw would change the generator that training goes on with.
    flat = flat[:: -(-flat.numel() // _NUMBERS)]
    return torch.quantile(flat, flat.new_tensor(QUANTILES)).tolist()
