"""Sends metrics to the run's logger, by optimizer steps done."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.throughput import get_available_flops

__all__ = ["History"]


class History(L.Callback):
    """Logs loss, gradient norm, learning rate and speed each step, metrics after validation.

    Args:
        flops_per_token: Forward operations a token; a training step counts three times that.
    """

    def __init__(self, *, flops_per_token: int) -> None:
        self.flops_per_token = flops_per_token
        self.tokens_per_second = 0.0
        self._tokens = 0
        self._clock = 0.0
        self._paused = 0.0
        self._step = 0
        self._lr = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._step = trainer.global_step
        self._clock = time.monotonic()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Note the step's learning rate; the schedule is ahead when the step is logged."""
        self._lr = max(group["lr"] for group in optimizer.param_groups)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: dict[str, torch.Tensor],
        batch_idx: int,
    ) -> None:
        """Log one optimizer step; all processes have as many tokens in it."""
        self._tokens += batch["tokens"].numel() * trainer.world_size
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        now = time.monotonic()
        self.tokens_per_second = self._tokens / max(now - self._clock, 1e-9)
        self._tokens = 0
        self._clock = now
        seen = trainer.callback_metrics
        metrics = {
            "train/loss": seen["train/loss"],
            "grad_norm": seen["grad_norm"],
            "lr": self._lr,
            "perf/tokens_per_second": self.tokens_per_second,
            **self._device(trainer),
        }
        self._log(trainer, metrics)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation is no part of the training speed."""
        self._paused = time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the metrics of a validation."""
        self._clock += time.monotonic() - self._paused
        seen = trainer.callback_metrics
        self._log(trainer, {k: v for k, v in seen.items() if k.startswith("val/")})

    def _device(self, trainer: L.Trainer) -> dict[str, float]:
        device = trainer.strategy.root_device
        if device.type != "cuda":
            return {}
        dtype = torch.bfloat16 if "bf16" in str(trainer.precision) else torch.float32
        used = 3 * self.flops_per_token * self.tokens_per_second / trainer.world_size
        peak = get_available_flops(device, dtype)
        metrics = {"perf/peak_memory_bytes": float(torch.cuda.max_memory_allocated(device))}
        return metrics | ({"perf/mfu": used / peak} if peak else {})

    def _log(self, trainer: L.Trainer, metrics: dict[str, Any]) -> None:
        if trainer.logger is not None and trainer.is_global_zero:
            plain = {name: float(value) for name, value in metrics.items()}
            trainer.logger.log_metrics(plain, step=trainer.global_step)
