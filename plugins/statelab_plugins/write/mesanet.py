"""MesaNet's memory: a forget gate and an input gate, both scalars a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import Section
from statelab.rules import MixerDims, ReadRule, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory

__all__ = ["MesaNet", "MesaNetConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MesaNetConfig(Section):
    """MesaNet's memory has no options."""


@write_rules.register("mesanet", config=MesaNetConfig)
class MesaNet(WriteRule):
    """MesaNet's memory: S_t = exp(g_t) S_(t-1) + w_t k_t v_t'.

    g = logsigmoid(W_g x + b_g) and w = sigmoid(W_w x + b_w). Nothing is erased: w is an input
    gate. With read=mesa it is MesaNet; read plainly, its control. Published sizes: K = V = 128,
    16 heads at a width of 2,048.

    Source: von Oswald et al. 2025, arXiv:2506.05233.
    """

    provides: ClassVar[frozenset[str]] = frozenset(
        {"linear", "features", "gated", "bounded", "symmetric"}
    )

    def __init__(self, config: MesaNetConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        self.forget_proj = nn.Linear(dims.d_model, dims.num_heads)
        self.input_proj = nn.Linear(dims.d_model, dims.num_heads)

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """Convolution and SiLU on q and k alone; both of unit length; an output norm, no gate."""
        return {
            "conv": 4,
            "conv_streams": ("q", "k"),
            "activation": "silu",
            "qk_norm": "l2",
            "query_scale": False,
            "output_norm": "rms",
        }

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Fade everything, and add the token as far as the input gate lets it."""
        forget, let = self.forget_proj(x), self.input_proj(x)
        dtype = compute_dtype(forget)
        return GatedMemory(k, v, g=F.logsigmoid(forget.to(dtype)), weight=let.to(dtype).sigmoid())
