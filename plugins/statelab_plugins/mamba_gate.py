"""The decay gate of Mamba-2, which many write rules share."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statelab.rules import ParamOptions, WriteRule
from statelab_kernels.precision import compute_dtype

__all__ = ["MambaGate", "MambaGatedRule"]


class MambaGate(nn.Module):
    """g = -exp(A_log) dt, with dt = softplus(proj(x) + dt_bias): a rate times a step in time.

    Args:
        proj: From the input to the steps, one a head or one a channel of a head.
        num_heads: H.
        channels: Steps a head; None is one, without an axis of its own.
        min_rate: A starts from U(min_rate, 16).

    Source: Dao and Gu 2024, arXiv:2405.21060.
    """

    def __init__(
        self, proj: nn.Module, num_heads: int, channels: int | None = None, *, min_rate: float
    ) -> None:
        super().__init__()
        self.proj = proj
        self.A_log = nn.Parameter(torch.empty(num_heads))
        steps = (num_heads,) if channels is None else (num_heads, channels)
        self.dt_bias = nn.Parameter(torch.empty(steps))
        self.min_rate = min_rate

    def reset_parameters(self) -> None:
        """A uniform; the step at x = 0 log-uniform in [1e-3, 1e-1]."""
        with torch.no_grad():
            # A draw of exactly 0 would be -inf.
            self.A_log.uniform_(self.min_rate, 16).clamp_(min=1e-4).log_()
            dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp_().clamp_(min=1e-4)
            # The inverse of softplus.
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def parameter_options(self, name: str) -> Mapping[str, ParamOptions]:
        """No weight decay on A_log and dt_bias, for a rule that has this gate as `name`."""
        own = (f"{name}.A_log", f"{name}.dt_bias")
        return dict.fromkeys(own, ParamOptions(weight_decay=False))

    def logit(self, x: Tensor) -> Tensor:
        """proj(x) + dt_bias, [B, T, H] or [B, T, H, channels], in at least fp32."""
        logit: Tensor = self.proj(x)
        logit = logit.reshape(*x.shape[:2], *self.dt_bias.shape)
        return logit.to(compute_dtype(logit)) + self.dt_bias

    def step(self, x: Tensor) -> Tensor:
        """dt, shaped like the logit."""
        return F.softplus(self.logit(x))

    def log_decay(self, step: Tensor) -> Tensor:
        """g, of these steps."""
        rate = self.A_log.to(step.dtype).exp()
        return -(rate if step.ndim == 3 else rate[:, None]) * step

    def forward(self, x: Tensor) -> Tensor:
        """The log decays g of the input x [B, T, D]."""
        return self.log_decay(self.step(x))


class MambaGatedRule(WriteRule):
    """A write rule whose decay is the gate `gate`, which it makes when it is built."""

    gate: MambaGate

    def reset_parameters(self) -> None:
        """Linear maps as everywhere, the gate as its own."""
        super().reset_parameters()
        self.gate.reset_parameters()

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on the decay's own parameters."""
        return self.gate.parameter_options("gate")
