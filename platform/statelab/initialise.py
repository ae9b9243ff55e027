"""How parameters start: normal(0, 0.02) for linear maps and embeddings, unless a rule says else."""

from __future__ import annotations

import math

from torch import nn

__all__ = ["STD", "reset_linear", "reset_residual"]

STD = 0.02


def reset_linear(module: nn.Module) -> None:
    """Start every linear map inside `module` from normal(0, 0.02), biases from 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def reset_residual(linear: nn.Linear, num_layers: int) -> None:
    """Start a map into the residual stream from normal(0, 0.02 / sqrt(2 L)), after GPT-2."""
    nn.init.normal_(linear.weight, std=STD / math.sqrt(2 * num_layers))
