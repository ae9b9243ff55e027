"""Kimi Delta Attention: Gated DeltaNet with a decay for every channel of the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import option
from statelab.rules import MixerDims, ReadRule, write_rules
from statelab_plugins.mamba_gate import MambaGate, MambaGatedRule
from statelab_plugins.memory import GatedMemory
from statelab_plugins.write.deltanet import DeltaNet, DeltaNetConfig, WriteStrength

__all__ = ["KDA", "BoundedGate", "KDAConfig"]


class BoundedGate(MambaGate):
    """g = least_decay * sigmoid(exp(A_log) (proj(x) + dt_bias)), above least_decay < 0."""

    def __init__(self, proj: nn.Module, num_heads: int, channels: int, least_decay: float) -> None:
        super().__init__(proj, num_heads, channels, min_rate=1.0)
        self.least_decay = least_decay

    def reset_parameters(self) -> None:
        """exp(A_log) = 1; dt_bias as without a bound."""
        super().reset_parameters()
        nn.init.zeros_(self.A_log)

    def forward(self, x: Tensor) -> Tensor:
        """The log decays g of the input x [B, T, D]."""
        logit = self.logit(x)
        # An infinite slope would meet the sigmoid's gradient of 0, and give NaN.
        slope = self.A_log.to(logit.dtype).clamp(max=40).exp()
        return self.least_decay * torch.sigmoid(slope[:, None] * logit)


@dataclass(frozen=True, kw_only=True, slots=True)
class KDAConfig(DeltaNetConfig):
    """Options of Kimi Delta Attention: those of DeltaNet, and a bound."""

    least_decay: float | None = option(
        None, "bound on the log decay a token, -5 as published; null is none", below=0
    )


@write_rules.register("kda", config=KDAConfig)
class KDA(MambaGatedRule):
    """KDA: S_t = (I - beta_t k_t k_t') diag(exp g_t) S_(t-1) + beta_t k_t v_t'.

    g = -exp(A_log) softplus(W2 W1 x + dt_bias), one a channel of the key, through a rank of V,
    with A from U(1, 16); or, with `least_decay`, the bounded gate that the release has for its
    kernels. Published sizes: K = V = 128, 16 heads at a width of 2,048.

    The published layer's output gate is of low rank and has a bias, where the mixer's is one
    linear map; and it may have more value heads than key heads.

    Source: Kimi Team 2025, arXiv:2510.26692.
    """

    provides: ClassVar[frozenset[str]] = DeltaNet.provides

    def __init__(self, config: KDAConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        d_model, heads, channels, rank = dims.d_model, dims.num_heads, dims.key_dim, dims.value_dim
        self.beta = WriteStrength(d_model, heads, allow_neg_eigval=config.allow_neg_eigval)
        proj = nn.Sequential(
            nn.Linear(d_model, rank, bias=False), nn.Linear(rank, heads * channels, bias=False)
        )
        if config.least_decay is None:
            self.gate = MambaGate(proj, heads, channels, min_rate=1.0)
        else:
            self.gate = BoundedGate(proj, heads, channels, config.least_decay)

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """DeltaNet's, and a sigmoid gate on the output."""
        return {**DeltaNet.preset(read), "output_gate": "sigmoid"}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Fade every channel, then replace part beta of what each key held."""
        return GatedMemory(k, v, g=self.gate(x), beta=self.beta(x))
