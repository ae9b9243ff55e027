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

    Where an example's labels are one answer, `val/exact` is the share of examples all of whose
    labels are guessed, also by slice. It is what greedy decoding would get right: a guess counts
    only where those before it are right, too.

    A slice that no label was seen of is left out.

    Args:
        vocab_size: Classes.
        slices: Names of the slices that a batch's "slice" indexes, [B] int64.
        text: Whether the labels stand for bytes of text.
        exact: Whether an example's labels are one answer.
    """

    def __init__(
        self, vocab_size: int, slices: Sequence[str], *, text: bool, exact: bool = False
    ) -> None:
        super().__init__()
        self.text = text
        self.exact = exact
        self.slices = tuple(slices)
        # A value that is no number is part of the sum: left out, it would make the mean look good.
        # (MeanMetric would then leave the weights out, too.)
        self.nats = SumMetric(nan_strategy="disable")
        self.num_labels = SumMetric(nan_strategy="disable")
        self.num_bytes = SumMetric(nan_strategy="disable")
        self.perplexity = Perplexity()
        self.accuracy = MulticlassAccuracy(vocab_size, average="micro", validate_args=False)
        self.slice_accuracy = SliceAccuracy(len(self.slices))
        self.exact_match = SliceAccuracy(1)
        self.slice_exact_match = SliceAccuracy(len(self.slices))

    def update(
        self,
        logits: Tensor,
        labels: Tensor,
        slices: Tensor | None,
        num_bytes: Tensor | None,
        examples: Tensor | None = None,
    ) -> None:
        """Take the positions of a batch in that have a label.

        Args:
            logits: [n, vocab_size].
            labels: [n].
            slices: The slice that each belongs to, [n], or None.
            num_bytes: Bytes of text that the labels stand for, or None if they stand for none.
            examples: The example of the batch that each belongs to, [n]; for exact match.
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
        if self.exact and examples is not None:
            _, example = torch.unique(examples, return_inverse=True)
            asked = torch.bincount(example)
            whole = torch.bincount(example[guess == labels], minlength=len(asked)) == asked
            self.exact_match.update(whole, torch.zeros_like(asked))
            if slices is not None:
                of_example = torch.zeros_like(asked).scatter(0, example, slices)
                self.slice_exact_match.update(whole, of_example)

    def compute(self) -> dict[str, Tensor]:
        """All metrics by name, then begin anew."""
        metrics = {
            "val/loss": self.nats.compute() / self.num_labels.compute(),
            "val/ppl": self.perplexity.compute(),
            "val/accuracy": self.accuracy.compute(),
        }
        if self.text:
            metrics["val/bpb"] = self.nats.compute() / self.num_bytes.compute() / math.log(2)
        metrics |= self._by_slice("val/accuracy", self.slice_accuracy)
        if self.exact:
            metrics["val/exact"] = self.exact_match.compute().squeeze()
            metrics |= self._by_slice("val/exact", self.slice_exact_match)
        for part in self.modules():
            if isinstance(part, Metric):
                part.reset()
        return metrics

    def _by_slice(self, name: str, metric: SliceAccuracy) -> dict[str, Tensor]:
        if not self.slices:
            return {}
        # Torchmetrics makes a number of a vector of one.
        values = metric.compute().reshape(len(self.slices))
        seen = {
            f"{name}/{each}": value
            for each, value in zip(self.slices, values, strict=True)
            if not value.isnan()
        }
        mean = {f"{name}/mean": torch.stack([*seen.values()]).mean()} if len(seen) > 1 else {}
        return seen | mean


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
