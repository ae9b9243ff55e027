"""Padding: a batch of unequal sequences becomes one packed row, so that no layer sees any."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from statelab.errors import DataError

__all__ = ["unpad"]


def unpad(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pack a left-padded batch: its sequences one after the other, their padding gone.

    Args:
        tokens: [B, T] int64.
        mask: Which tokens are real, [B, T]; each row ends in at least one.

    Returns:
        The row of real tokens, [1, n], and the boundaries of the sequences in it, [B + 1] int64.

    Raises:
        DataError: If the mask has another shape, or a row that is all padding or padded elsewhere.
    """
    real = mask.bool()
    if tokens.ndim != 2 or tokens.shape != real.shape:
        raise DataError(
            f"tokens and mask must both be [B, T], got {list(tokens.shape)} and {list(real.shape)}."
        )
    if not real.any(1).all():
        row = int(real.any(1).int().argmin())
        raise DataError(f"row {row} of the mask is all padding. Leave it out of the batch.")
    if (real[:, :-1] & ~real[:, 1:]).any():
        row = int((real[:, :-1] & ~real[:, 1:]).any(1).int().argmax())
        raise DataError(
            f"row {row} of the mask has padding after a token. Pad on the left: 0 0 1 1 1."
        )
    return tokens[real][None], F.pad(real.sum(1).cumsum(0), (1, 0))
