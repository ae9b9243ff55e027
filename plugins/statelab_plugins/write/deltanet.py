"""DeltaNet: a write first erases what its key held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import Section, option
from statelab.rules import MixerDims, ReadRule, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory

__all__ = ["DeltaNet", "DeltaNetConfig", "WriteStrength"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaNetConfig(Section):
    """Options of DeltaNet."""

    allow_neg_eigval: bool = option(
        False, "let beta reach 2, so that a transition's eigenvalue along the key reaches -1"
    )


class WriteStrength(nn.Module):
    """beta = sigmoid(W x), a scalar a head in (0, 1), doubled for negative eigenvalues."""

    def __init__(self, d_model: int, num_heads: int, *, allow_neg_eigval: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, num_heads, bias=False)
        self.top = 2.0 if allow_neg_eigval else 1.0

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H"]:
        """In at least fp32."""
        logit: Tensor = self.proj(x)
        return self.top * logit.to(compute_dtype(logit)).sigmoid()


@write_rules.register("deltanet", config=DeltaNetConfig)
class DeltaNet(WriteRule):
    """DeltaNet: S_t = (I - beta_t k_t k_t') S_(t-1) + beta_t k_t v_t'.

    Keys must have unit length, as the preset's do, for the transition to stay a contraction.

    Source: Yang et al. 2024, arXiv:2406.06484; negative eigenvalues: arXiv:2411.12537.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"linear", "features", "gated", "bounded"})

    def __init__(self, config: DeltaNetConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        self.beta = WriteStrength(
            dims.d_model, dims.num_heads, allow_neg_eigval=config.allow_neg_eigval
        )

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """Convolution and SiLU on q, k and v; unit q and k; an output norm and no gate."""
        return {
            "conv": 4,
            "conv_streams": ("q", "k", "v"),
            "activation": "silu",
            "qk_norm": "l2",
            "output_norm": "rms",
        }

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Replace part beta of what each key held."""
        return GatedMemory(k, v, beta=self.beta(x))
