"""Validation metrics, summed over all batches and processes by torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity

__all__ = ["LanguageMetrics", "token_loss"]

IGNORED = -100


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the labels that aren't ignored; logits in at least fp32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class LanguageMetrics(nn.Module):
    """Loss, perplexity, accuracy, bits per byte, and accuracy and loss by slice.

    Args:
        vocab_size: Classes.
        slices: Names of the slices that a batch's "slice" indexes, [B] int64.
    """

    def __init__(self, vocab_size: int, slices: Sequence[str]) -> None:
        super().__init__()
        self.slices = tuple(slices)
        self.loss = MeanMetric()
        self.perplexity = Perplexity(ignore_index=IGNORED)
        self.accuracy = _accuracy(vocab_size)
        self.num_bytes = SumMetric()
        self.nats = SumMetric()
        self.slice_accuracy = nn.ModuleList(_accuracy(vocab_size) for _ in self.slices)

    def update(
        self, logits: Tensor, labels: Tensor, slices: Tensor | None, num_bytes: Tensor | None
    ) -> None:
        """Take a batch in.

        Args:
            logits: [B, T, vocab_size].
            labels: [B, T]; -100 is ignored.
            slices: The slice of each sequence, [B], or None.
            num_bytes: Bytes of text that the labels stand for, or None if they stand for none.
        """
        count = (labels != IGNORED).sum()
        if count == 0:
            return
        loss = token_loss(logits, labels)
        self.loss.update(loss, count)
        self.perplexity.update(logits, labels)
        guess = logits.argmax(-1)
        self.accuracy.update(guess, labels)
        if num_bytes is not None:
            self.nats.update(loss.double() * count)
            self.num_bytes.update(num_bytes)
        if slices is not None:
            for index, metric in enumerate(self.slice_accuracy):
                chosen = slices == index
                if chosen.any():
                    metric.update(guess[chosen], labels[chosen])

    def compute(self) -> dict[str, Tensor]:
        """All metrics by name, then begin anew."""
        metrics = {
            "val/loss": self.loss.compute(),
            "val/ppl": self.perplexity.compute(),
            "val/accuracy": self.accuracy.compute(),
        }
        num_bytes = self.num_bytes.compute()
        if num_bytes > 0:
            metrics["val/bpb"] = self.nats.compute() / num_bytes / math.log(2)
        for name, metric in zip(self.slices, self.slice_accuracy, strict=True):
            metrics[f"val/accuracy/{name}"] = metric.compute()
        for part in self.modules():
            if part is not self and hasattr(part, "reset"):
                part.reset()
        return metrics


def _accuracy(vocab_size: int) -> MulticlassAccuracy:
    return MulticlassAccuracy(vocab_size, average="micro", ignore_index=IGNORED)
