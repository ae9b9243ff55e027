"""The LightningModule: loss, optimizer, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from statelab.config import Config
from statelab.loading import load_config, to_dict
from statelab.metrics import IGNORED, LanguageMetrics, token_loss
from statelab.model.build import build_model
from statelab.model.decoder import Decoder
from statelab.model.generation import GenerationMixin
from statelab.optim import make_optimizer, total_steps
from statelab.strategies import shard

__all__ = ["LanguageModel"]

log = logging.getLogger(__name__)


class LanguageModel(GenerationMixin, L.LightningModule):
    """A decoder in training.

    Args:
        config: The configuration, or the nested dictionary that `to_dict` makes of one: that is
            what a checkpoint holds, so that `load_from_checkpoint` works alone.

    Attributes:
        update_applied: Whether the last optimizer step had a finite loss and gradient; without
            them it has changed nothing.
    """

    def __init__(self, config: Config | Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config if isinstance(config, Config) else load_config(config)
        self.save_hyperparameters({"config": to_dict(self.config)})
        self.model: Decoder | None = None
        self.metrics: LanguageMetrics | None = None
        self.update_applied = True
        self._losses: list[Tensor] = []

    def configure_model(self) -> None:
        """Build the decoder, and shard it if the trainer does; does nothing if it is there."""
        if self.model is None:
            self.model = build_model(self.config)
            if self.device_mesh is not None:
                shard(self.model, self.device_mesh["data_parallel"])

    @property
    def decoder(self) -> Decoder:
        """What generates."""
        self.configure_model()
        assert self.model is not None
        return self.model

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

    def on_fit_start(self) -> None:
        """Run the blocks as `trainer` says; only training is compiled and checkpointed."""
        assert self.model is not None
        trainer = self.config.trainer
        self.model.checkpointing = trainer.activation_checkpointing
        if trainer.compile:
            # Torch's compiler takes seconds to import.
            from statelab.model.compilation import compile_blocks

            compile_blocks(self.model)
        if trainer.precision == "bf16-true" and self.trainer.is_global_zero:
            log.warning(
                "trainer.precision=bf16-true: a weight near 1, as norms have them, moves by steps "
                "of 0.4 % or not at all, so at a small optim.lr it stays where it is; "
                "trainer.precision=bf16-mixed keeps the weights in fp32"
            )

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean cross-entropy of a batch over the positions that have a label, in nats."""
        return token_loss(*self._predictions(batch))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """This process's part of the mean loss over the batches of all processes.

        The parts' mean is that loss, as the mean of their gradients is its gradient: it is what one
        process with all the examples would have. Logged is the mean over the batches of a step.
        """
        logits, labels = self._predictions(batch)
        loss = token_loss(logits, labels) * self._share(labels)
        self._losses.append(loss.detach())
        mean = torch.stack(self._losses).mean()
        self.log("train/loss", mean, prog_bar=True, logger=False, sync_dist=True)
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip to `optim.grad_clip`, and log the norm before clipping; once a step.

        Where norm or loss is not finite, nothing is left of the step.
        """
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters(), self.config.optim.grad_clip or float("inf")
        )
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        self.log("grad_norm", norm, logger=False)
        finite = bool(torch.stack([norm, *self._losses]).isfinite().all())
        self._losses.clear()
        # Losses are each process's own, and all must do the same.
        self.update_applied = self.trainer.strategy.reduce_boolean_decision(finite, all=True)
        if not self.update_applied:
            # AdamW passes over what has no gradient: weights, moments and step counts stay.
            optimizer.zero_grad(set_to_none=True)

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
            data = self.trainer.datamodule  # type: ignore[attr-defined]
            self.metrics = LanguageMetrics(
                self.config.model.vocab_size,
                data.slices,
                text=data.is_text,
                exact=data.is_one_answer,
            ).to(self.device)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Add a batch to the metrics."""
        assert self.metrics is not None
        logits, labels = self._predictions(batch)
        slices, asked = batch.get("slice"), batch["labels"] != IGNORED
        # A packed batch is one row, of as many examples as it has slices.
        rows = len(asked) if slices is None else len(slices)
        examples = asked.reshape(rows, -1).nonzero()[:, 0]
        if slices is not None:
            slices = slices[examples]
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.metrics.update(logits, labels, slices, data.num_bytes(batch), examples)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the whole split."""
        assert self.metrics is not None
        # They are those of all processes already, which Lightning can't know.
        self.log_dict(self.metrics.compute(), logger=False, sync_dist=True)

    def _share(self, labels: Tensor) -> Tensor | float:
        """How often this process's mean counts, so that the mean over processes is that of all."""
        world = self.trainer.world_size
        if world == 1:
            return 1.0
        count = torch.tensor(len(labels), device=labels.device)
        total = self.trainer.strategy.reduce(count.clone(), reduce_op="sum")
        return world * count / total.clamp(min=1)

    def _predictions(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits [n, vocab_size] and labels [n] of the n positions that have a label.

        Recall tasks ask at a few positions only; the head is most of the work there.
        """
        assert self.model is not None
        hidden, _ = self.model.hidden(batch["tokens"], cu_seqlens=batch.get("cu_seqlens"))
        asked = batch["labels"] != IGNORED
        return self.model.head(hidden[asked]), batch["labels"][asked]
