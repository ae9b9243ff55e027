"""The LightningModule: loss, optimizer, and what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from statelab.build import build_model
from statelab.config import Config
from statelab.decoder import Decoder
from statelab.loading import load_config, to_dict
from statelab.metrics import LanguageMetrics, token_loss
from statelab.optim import make_optimizer, total_steps

__all__ = ["LanguageModel"]


class LanguageModel(L.LightningModule):
    """A decoder in training.

    Args:
        config: The configuration, or the nested dictionary that `to_dict` makes of one: that is
            what a checkpoint holds, so that `load_from_checkpoint` works alone.
    """

    def __init__(self, config: Config | Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config if isinstance(config, Config) else load_config(config)
        self.save_hyperparameters({"config": to_dict(self.config)})
        self.model: Decoder | None = None
        self.metrics: LanguageMetrics | None = None

    def configure_model(self) -> None:
        """Build the decoder; does nothing if it is there."""
        if self.model is None:
            self.model = build_model(self.config)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the decoder before its weights arrive."""
        self.configure_model()

    def forward(
        self,
        tokens: Tensor,
        state: Mapping[str, Tensor] | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits and state: `Decoder.forward`."""
        self.configure_model()
        assert self.model is not None
        out: tuple[Tensor, dict[str, Tensor]] = self.model(tokens, state, cu_seqlens)
        return out

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The mean loss of a batch."""
        logits, _ = self(batch["tokens"])
        loss = token_loss(logits, batch["labels"])
        self.log("train/loss", loss, prog_bar=True, logger=False)
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip to `optim.grad_clip`, and log the norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters(), self.config.optim.grad_clip or float("inf")
        )
        self.log("grad_norm", norm, logger=False)

    def configure_optimizers(self) -> Any:
        """AdamW and its schedule, by optimizer steps."""
        assert self.model is not None
        optimizer, schedule = make_optimizer(
            self.model, self.config.optim, total_steps(self.config)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 1},
        }

    def on_validation_epoch_start(self) -> None:
        """Make the metrics for the data at hand."""
        if self.metrics is None:
            assert self.config.model.vocab_size is not None
            slices = self.trainer.datamodule.slices  # type: ignore[attr-defined]
            self.metrics = LanguageMetrics(self.config.model.vocab_size, slices).to(self.device)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Add a batch to the metrics."""
        assert self.metrics is not None
        logits, _ = self(batch["tokens"])
        labels = batch["labels"]
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.metrics.update(logits, labels, batch.get("slice"), data.num_bytes(labels))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the whole split."""
        assert self.metrics is not None
        self.log_dict(self.metrics.compute(), logger=False)
