"""Normalisations that rules and the mixer share."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["l2_normalize"]


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide x by sqrt(|x|^2 + eps) over the last axis, in at least fp32; the dtype stays.

    eps stands inside the root, as in the field's kernels, so that the gradient at 0 is finite.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
