"""Gated DeltaNet: the whole memory decays at a pace that the input sets, then the key erases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statelab.rules import MixerDims, ParamOptions, ReadRule, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory
from statelab_plugins.write.deltanet import DeltaNet, DeltaNetConfig, WriteStrength

__all__ = ["GatedDeltaNet", "GatedDeltaNetConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedDeltaNetConfig(DeltaNetConfig):
    """Options of Gated DeltaNet: those of DeltaNet."""


@write_rules.register("gated_deltanet", config=GatedDeltaNetConfig)
class GatedDeltaNet(WriteRule):
    """Gated DeltaNet: S_t = (I - beta_t k_t k_t') exp(g_t) S_(t-1) + beta_t k_t v_t'.

    g = -exp(A_log) softplus(W x + dt_bias), a scalar a head: a rate A times a step in time.

    Source: Yang et al. 2024, arXiv:2412.06464; the decay is that of Mamba-2, arXiv:2405.21060.
    """

    provides: ClassVar[frozenset[str]] = DeltaNet.provides

    def __init__(self, config: GatedDeltaNetConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        self.beta = WriteStrength(
            dims.d_model, dims.num_heads, allow_neg_eigval=config.allow_neg_eigval
        )
        self.dt_proj = nn.Linear(dims.d_model, dims.num_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(dims.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(dims.num_heads))

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """DeltaNet's, and a SiLU gate on the output."""
        return {**DeltaNet.preset(read), "output_gate": "silu"}

    def reset_parameters(self) -> None:
        """A from U(0, 16); the step at x = 0 log-uniform in [1e-3, 1e-1]."""
        super().reset_parameters()
        with torch.no_grad():
            # A draw of exactly 0 would be -inf.
            self.A_log.uniform_(0, 16).clamp_(min=1e-4).log_()
            dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp_().clamp_(min=1e-4)
            # The inverse of softplus.
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on the decay's own parameters."""
        return dict.fromkeys(("A_log", "dt_bias"), ParamOptions(weight_decay=False))

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Fade everything, then replace part beta of what each key held."""
        return GatedMemory(k, v, g=self._log_decay(x), beta=self.beta(x))

    def _log_decay(self, x: Tensor) -> Tensor:
        step = self.dt_proj(x)
        dtype = compute_dtype(step)
        step = F.softplus(step.to(dtype) + self.dt_bias.to(dtype))
        return -self.A_log.to(dtype).exp() * step
