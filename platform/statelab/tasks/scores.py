"""What is made of the losses of a corpus at one length."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from statelab.console import progress
from statelab.tasks.corpora import TokenText
from statelab.tasks.windows import position_losses

if TYPE_CHECKING:
    from statelab.tasks.length import LengthConfig
    from statelab.tasks.trained import Trained

__all__ = ["Score", "curve", "score"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A corpus at one length.

    Attributes:
        corpus: Its name.
        length: Tokens a window.
        windows: How many there are.
        dropped: Tokens behind the last one.
        by_position: Mean loss of positions 1 .. length - 1, nats, float64.
        num_bytes: Of the predicted tokens; None where it is unknown.
    """

    corpus: str
    length: int
    windows: int
    dropped: int
    by_position: Tensor
    num_bytes: int | None

    @property
    def loss(self) -> float:
        """Mean over all predicted tokens, nats."""
        return float(self.by_position.mean())

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        tokens = self.windows * (self.length - 1)
        bits = self.loss * tokens / math.log(2)
        return {
            "corpus": self.corpus,
            "length": self.length,
            "ppl": _exp(self.loss),
            "loss": self.loss,
            "bpb": bits / self.num_bytes if self.num_bytes else None,
            "windows": self.windows,
            "predicted": tokens,
            "dropped": self.dropped,
        }


def score(trained: Trained, corpus: TokenText, length: int, config: LengthConfig) -> Score:
    """Read a corpus in windows of one length."""
    kept = len(corpus.tokens) // length * length
    done, began = 0, time.monotonic()
    with progress(f"{corpus.name}, windows of {length:,}") as tell, trained.running():

        def advance(tokens: int) -> None:
            nonlocal done
            done += tokens
            speed = done / max(time.monotonic() - began, 1e-9)
            tell(f"{done:,} of {kept:,} tokens, {speed:,.0f} a second")

        losses = position_losses(
            trained.model,
            corpus.tokens,
            length,
            chunk=config.chunk if config.method == "stream" else None,
            batch_tokens=config.batch_tokens,
            advance=advance,
        )
    sizes = corpus.sizes
    return Score(
        corpus=corpus.name,
        length=length,
        windows=len(losses),
        dropped=len(corpus.tokens) - kept,
        by_position=losses.double().mean(0),
        num_bytes=None if sizes is None else int(sizes[:kept].view(-1, length)[:, 1:].sum()),
    )


def curve(by_position: Tensor, bins: int) -> list[dict[str, float]]:
    """Loss by position in bins of equal width in the logarithm of the position.

    Args:
        by_position: Mean loss of positions 1 .. L - 1, nats.
        bins: How many there are at most; a bin without a position is left out.

    Returns:
        A row a bin: its first and last position, and the mean loss.
    """
    last = len(by_position)
    edges = np.unique(np.rint(np.geomspace(1, last + 1, bins + 1)).astype(int))
    return [
        {"first": int(a), "last": int(b - 1), "loss": float(by_position[a - 1 : b - 1].mean())}
        for a, b in itertools.pairwise(edges)
    ]


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
