"""The step between products by lag and products by token.

In a chunk the memory's answer depends on the lag i - j alone, so one matrix product gives each
token i its answers to all C lags, the largest first: column k stands for lag C-1-k. Mixing the
tokens takes the same numbers by token j. Each way pads the rows and reads them again with rows one
number shorter or longer, which shifts row i by i. The two are adjoint to each other.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def by_token(lags: Tensor) -> Tensor:
    """A_ij = lags[i, C-1-(i-j)] for j <= i, else 0; [..., C, C]."""
    out: Tensor = _ByToken.apply(lags)  # type: ignore[no-untyped-call]
    return out


def by_lag(scores: Tensor) -> Tensor:
    """L_ik = scores[i, i-(C-1-k)], or 0 where that is before the chunk; [..., C, C]."""
    out: Tensor = _ByLag.apply(scores)  # type: ignore[no-untyped-call]
    return out


class _ByToken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lags: Tensor) -> Tensor:
        size = lags.shape[-1]
        rows = pad(lags, (0, size))
        return rows.as_strided(lags.shape, (*rows.stride()[:-2], 2 * size - 1, 1), size - 1)

    @staticmethod
    def backward(ctx: Any, d_scores: Tensor) -> Tensor:
        return by_lag(d_scores)


class _ByLag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        size = scores.shape[-1]
        rows = pad(scores, (size, 0))
        return rows.as_strided(scores.shape, (*rows.stride()[:-2], 2 * size + 1, 1), 1)

    @staticmethod
    def backward(ctx: Any, d_lags: Tensor) -> Tensor:
        return by_token(d_lags)
