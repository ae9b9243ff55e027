"""Normalisations that rules and the mixer share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["RMSNorm", "l2_normalize"]


class RMSNorm(nn.RMSNorm):
    """Torch's, with the weight in the input's dtype.

    Under autocast the two may differ, and torch then leaves its fused form, with a warning.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x over the last axis."""
        assert self.weight is not None
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide x by sqrt(|x|^2 + eps) over the last axis, in at least fp32; the dtype stays.

    eps stands inside the root, as in the field's kernels, so that the gradient at 0 is finite.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
