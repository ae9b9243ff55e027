"""Gated DeltaNet: the whole memory decays at a pace that the input sets, then the key erases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from statelab.rules import MixerDims, ReadRule, write_rules
from statelab_plugins.mamba_gate import MambaGate, MambaGatedRule
from statelab_plugins.memory import GatedMemory
from statelab_plugins.write.deltanet import DeltaNet, DeltaNetConfig, WriteStrength

__all__ = ["GatedDeltaNet", "GatedDeltaNetConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedDeltaNetConfig(DeltaNetConfig):
    """Options of Gated DeltaNet: those of DeltaNet."""


@write_rules.register("gated_deltanet", config=GatedDeltaNetConfig)
class GatedDeltaNet(MambaGatedRule):
    """Gated DeltaNet: S_t = (I - beta_t k_t k_t') exp(g_t) S_(t-1) + beta_t k_t v_t'.

    g = -exp(A_log) softplus(W x + dt_bias), a scalar a head: Mamba-2's gate, A from U(0, 16).

    Source: Yang et al. 2024, arXiv:2412.06464.
    """

    provides: ClassVar[frozenset[str]] = DeltaNet.provides

    def __init__(self, config: GatedDeltaNetConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        heads = dims.num_heads
        self.beta = WriteStrength(dims.d_model, heads, allow_neg_eigval=config.allow_neg_eigval)
        self.gate = MambaGate(nn.Linear(dims.d_model, heads, bias=False), heads, min_rate=0.0)

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """DeltaNet's, and a SiLU gate on the output."""
        return {**DeltaNet.preset(read), "output_gate": "silu"}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Fade everything, then replace part beta of what each key held."""
        return GatedMemory(k, v, g=self.gate(x), beta=self.beta(x))
