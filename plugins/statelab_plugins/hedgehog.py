"""The Hedgehog feature map: learned, positive, and summing to one."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statelab_kernels.precision import compute_dtype

__all__ = ["Hedgehog"]


class Hedgehog(nn.Module):
    """phi(x) = softmax([2y, -2y]) with y = W x + b a head; K numbers become 2K.

    It starts from W = I and b = 0. The factor 2 is that of the field's implementation.

    Args:
        num_heads: H.
        key_dim: K.

    Source: Zhang et al. 2024, arXiv:2402.04347.
    """

    def __init__(self, num_heads: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, key_dim, key_dim))
        self.bias = nn.Parameter(torch.empty(num_heads, key_dim))

    def reset_parameters(self) -> None:
        """W = I, b = 0."""
        with torch.no_grad():
            self.weight.copy_(torch.eye(self.weight.shape[-1]).expand_as(self.weight))
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B T H K"]) -> Float[Tensor, "B T H M"]:
        """Map every head's vectors; the softmax is taken in at least fp32."""
        y = torch.einsum("bthk,hjk->bthj", x, self.weight.to(x.dtype)) + self.bias.to(x.dtype)
        y = 2 * y.to(compute_dtype(y))
        return torch.cat([y, -y], -1).softmax(-1).to(x.dtype)
