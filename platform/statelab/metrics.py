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
    """Loss, perplexity, accuracy, bits per byte, and accuracy by slice with the slices' mean.

    A slice that no label was seen of is left out.

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
        self.accuracy = MulticlassAccuracy(vocab_size, average="micro", validate_args=False)
        self.slice_accuracy = SliceAccuracy(len(self.slices))

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
            self.slice_accuracy.update(guess == labels, slices)

    def compute(self) -> dict[str, Tensor]:
        """All metrics by name, then begin anew."""
        metrics = {
            "val/loss": self.nats.compute() / self.num_labels.compute(),
            "val/ppl": self.perplexity.compute(),
            "val/accuracy": self.accuracy.compute(),
        }
        if self.text:
            metrics["val/bpb"] = self.nats.compute() / self.num_bytes.compute() / math.log(2)
        if self.slices:
            # Torchmetrics makes a number of a vector of one.
            accuracy = self.slice_accuracy.compute().reshape(len(self.slices))
            by_slice = zip(self.slices, accuracy, strict=True)
            seen = {name: value for name, value in by_slice if not value.isnan()}
            metrics |= {f"val/accuracy/{name}": value for name, value in seen.items()}
            if len(seen) > 1:
                metrics["val/accuracy/mean"] = torch.stack([*seen.values()]).mean()
        for part in self.modules():
            if isinstance(part, Metric):
                part.reset()
        return metrics


class SliceAccuracy(Metric):
    """The share of right guesses in each slice; NaN of a slice without any.

    Args:
        num_slices: How many slices there are.
    """

    right: Tensor
    asked: Tensor

    def __init__(self, num_slices: int) -> None:
        super().__init__()
        for name in ("right", "asked"):
            self.add_state(name, torch.zeros(num_slices, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, right: Tensor, slices: Tensor) -> None:
        """Take guesses in.

        Args:
            right: Whether each is right, [n] bool.
            slices: The slice that each belongs to, [n] int64.
        """
        num = len(self.asked)
        self.right += torch.bincount(slices[right], minlength=num)
        self.asked += torch.bincount(slices, minlength=num)

    def compute(self) -> Tensor:
        """By slice."""
        return self.right / self.asked
