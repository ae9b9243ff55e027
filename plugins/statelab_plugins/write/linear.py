"""Linear attention: everything is added, and nothing is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from statelab.options import Section
from statelab.rules import ReadRule, WriteRule, write_rules
from statelab_plugins.memory import GatedMemory

__all__ = ["Linear", "LinearConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearConfig(Section):
    """Linear attention has no options."""


@write_rules.register("linear", config=LinearConfig)
class Linear(WriteRule):
    """Linear attention: S_t = S_(t-1) + k_t v_t'.

    Its memory grows with the number of tokens, which the preset's output norm takes out.

    Source: Katharopoulos et al. 2020, arXiv:2006.16236, without feature map and normaliser.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"linear", "features", "gated", "symmetric"})

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """RMSNorm a head; where features are read, a convolution on what makes them."""
        conv = {"conv": 4, "conv_streams": ("q", "k")} if "features" in read.requires else {}
        return {"output_norm": "rms", **conv}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Add every token."""
        return GatedMemory(k, v)
