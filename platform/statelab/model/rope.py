"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rope"]


def rope(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate pairs of channels (i, i + D/2) by the angle positions * base^(-2i/D).

    Args:
        x: [B, T, H, D], D even.
        positions: [B, T] or [1, T].
        base: The longest wavelength is about 2 pi base tokens.

    Returns:
        The rotated x, in its dtype; angles are computed in at least fp32.

    Source: Su et al. 2021, arXiv:2104.09864, in the half-split order of Llama.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = x.shape[-1] // 2
    exponent = torch.arange(half, device=x.device, dtype=wide) / half
    angle = positions[..., None, None].to(wide) * base**-exponent  # [B, T, 1, D/2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
