"""How parameters start: normal(0, model.init_std) for linear maps, unless a rule says else."""

from __future__ import annotations

import math

from torch import nn

__all__ = ["reset_linear", "reset_residual"]


def reset_linear(module: nn.Module, std: float) -> None:
    """Start every linear map inside `module` from normal(0, std), biases from 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def reset_residual(linear: nn.Linear, std: float, num_layers: int) -> None:
    """Start a map into the residual stream from normal(0, std / sqrt(2 L)), after GPT-2."""
    nn.init.normal_(linear.weight, std=std / math.sqrt(2 * num_layers))
