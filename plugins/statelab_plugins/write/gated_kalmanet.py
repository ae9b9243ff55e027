"""Gated KalmaNet's memory: Mamba-2's decay, and an input gate on key and value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import Section, option
from statelab.rules import MixerDims, ReadRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.mamba_gate import MambaGate, MambaGatedRule
from statelab_plugins.memory import GatedMemory
from statelab_plugins.write.deltanet import DeltaNet

__all__ = ["GatedKalmaNet", "GatedKalmaNetConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedKalmaNetConfig(Section):
    """Options of Gated KalmaNet's memory."""

    input_gate: bool = option(
        True, "weight a write, as the release does; the paper's main runs don't"
    )


@write_rules.register("gated_kalmanet", config=GatedKalmaNetConfig)
class GatedKalmaNet(MambaGatedRule):
    """Gated KalmaNet's memory: S_t = exp(g_t) S_(t-1) + beta_t^2 k_t v_t'.

    g = -exp(A_log) softplus(W x + dt_bias), a scalar a head, with A from U(0, 16), and
    beta = sigmoid(W_b x + b). beta stands on the key and on the value, so whatever is written,
    keys included, has it twice. With read=gka it is Gated KalmaNet; read plainly, its control.
    Published size: K = V = 128.

    Source: Peng et al. 2025, arXiv:2511.21016. The release may decay keys and values apart, and
    have fewer key heads or query heads than others.
    """

    provides: ClassVar[frozenset[str]] = frozenset(
        {"linear", "features", "gated", "bounded", "symmetric"}
    )

    def __init__(self, config: GatedKalmaNetConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        heads = dims.num_heads
        self.gate = MambaGate(nn.Linear(dims.d_model, heads, bias=False), heads, min_rate=0.0)
        self.input_proj = nn.Linear(dims.d_model, heads) if config.input_gate else None

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """DeltaNet's, and a SiLU gate on the output."""
        return {**DeltaNet.preset(read), "output_gate": "silu"}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Fade everything, and add the token as far as its gate lets it."""
        weight = None
        if self.input_proj is not None:
            let = self.input_proj(x)
            weight = let.to(compute_dtype(let)).sigmoid().square()
        return GatedMemory(k, v, g=self.gate(x), weight=weight)
