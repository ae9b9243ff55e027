"""Validation metrics, summed over all batches and processes by torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric, SumMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity

__all__ = ["LanguageMetrics", "token_loss"]

IGNORED = -100


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits [n, vocab_size], in at least fp32; 0 if n is 0."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, labels, reduction="sum") / max(len(labels), 1)


class LanguageMetrics(nn.Module):
    """Loss, perplexity, accuracy, bits per byte, and accuracy and loss by slice.

    Args:
        vocab_size: Classes.
        slices: Names of the slices that a batch's "slice" indexes, [B] int64.
        text: Whether the labels stand for bytes of text.
    """

    def __init__(self, vocab_size: int, slices: Sequence[str], *, text: bool) -> None:
        super().__init__()
        self.text = text
        self.slices = tuple(slices)
        # A value that is no number is part of the sum: left out, it would make the mean look good.
        # (MeanMetric would then leave the weights out, too.)
        self.nats = SumMetric(nan_strategy="disable")
        self.num_labels = SumMetric(nan_strategy="disable")
        self.num_bytes = SumMetric(nan_strategy="disable")
        self.perplexity = Perplexity()
        self.accuracy = _accuracy(vocab_size)
        self.slice_accuracy = nn.ModuleList(_accuracy(vocab_size) for _ in self.slices)

    def update(
        self, logits: Tensor, labels: Tensor, slices: Tensor | None, num_bytes: Tensor | None
    ) -> None:
        """Take the positions of a batch in that have a label.

        Args:
            logits: [n, vocab_size].
            labels: [n].
            slices: The slice that each belongs to, [n], or None.
            num_bytes: Bytes of text that the labels stand for, or None if they stand for none.
        """
        count = len(labels)
        if count == 0:
            return
        loss = token_loss(logits, labels)
        self.nats.update(loss.double() * count)
        self.num_labels.update(count)
        self.perplexity.update(logits[None], labels[None])
        guess = logits.argmax(-1)
        self.accuracy.update(guess, labels)
        if num_bytes is not None:
            self.num_bytes.update(num_bytes)
        if slices is not None:
            for index, metric in enumerate(self.slice_accuracy):
                assert isinstance(metric, MulticlassAccuracy)
                chosen = slices == index
                if chosen.any():
                    metric.update(guess[chosen], labels[chosen])

    def compute(self) -> dict[str, Tensor]:
        """All metrics by name, then begin anew."""
        metrics = {
            "val/loss": self.nats.compute() / self.num_labels.compute(),
            "val/ppl": self.perplexity.compute(),
            "val/accuracy": self.accuracy.compute(),
        }
        if self.text:
            metrics["val/bpb"] = self.nats.compute() / self.num_bytes.compute() / math.log(2)
        for name, metric in zip(self.slices, self.slice_accuracy, strict=True):
            assert isinstance(metric, MulticlassAccuracy)
            metrics[f"val/accuracy/{name}"] = metric.compute()
        for part in self.modules():
            if isinstance(part, Metric):
                part.reset()
        return metrics


def _accuracy(vocab_size: int) -> MulticlassAccuracy:
    return MulticlassAccuracy(vocab_size, average="micro", validate_args=False)
