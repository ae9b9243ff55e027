"""Every token from the last one's hidden vector: how a compressed sequence is read out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statelab.model.initialise import reset_linear

__all__ = ["LastReadout", "sinusoids"]


class LastReadout(nn.Module):
    """y_t = MLP(x_T + p_t), T a sequence's last token: all that is known of it is one vector.

    p_t are fixed sinusoids of the position. The MLP is norm, linear, GELU, twice, all of the
    model's width; the decoder's own norm and head follow.

    Source: Poli et al. 2024, arXiv:2403.17844, the compression task, and its code.

    Args:
        d_model: Width of the residual stream.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.RMSNorm(d_model, eps=1e-5),
            nn.Linear(d_model, d_model),
            nn.GELU(),
            nn.RMSNorm(d_model, eps=1e-5),
            nn.Linear(d_model, d_model),
            nn.GELU(),
        )

    def reset_parameters(self, std: float) -> None:
        """Start the linear maps from normal(0, std), biases from 0, norms from 1."""
        reset_linear(self.mlp, std)
        for part in self.mlp:
            if isinstance(part, nn.RMSNorm):
                part.reset_parameters()

    def forward(self, x: Tensor, positions: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        """What stands for each position, made of the last token of its sequence.

        Args:
            x: Hidden vectors, [B, T, d_model].
            positions: The place of each token in its sequence, [B, T] int64.
            cu_seqlens: Boundaries of packed sequences, [N + 1], or None.

        Returns:
            [B, T, d_model].
        """
        if cu_seqlens is None:
            last = x[:, -1:]
        else:
            bounds = cu_seqlens.to(x.device)
            last = x[:, bounds[1:] - 1].repeat_interleave(
                bounds.diff(), dim=1, output_size=x.shape[1]
            )
        out: Tensor = self.mlp(last + sinusoids(positions, x.shape[-1]).to(x.dtype))
        return out


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """Fixed codes of positions: sines, then cosines, of wavelengths from 2 pi to 20,000 pi.

    Args:
        positions: [...], whole numbers.
        size: Numbers of a code; of an odd one the last is 0.

    Returns:
        [..., size], fp32.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5, with sines and cosines apart.
    """
    half = size // 2
    steps = torch.arange(half, device=positions.device) / max(half - 1, 1)
    angles = positions[..., None] * torch.exp(-math.log(10_000.0) * steps)
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, size % 2))
