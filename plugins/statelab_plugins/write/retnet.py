"""RetNet: every head forgets at a fixed pace of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from statelab.options import Section
from statelab.rules import ReadRule, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory

__all__ = ["RetNet", "RetNetConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetNetConfig(Section):
    """RetNet has no options."""


@write_rules.register("retnet", config=RetNetConfig)
class RetNet(WriteRule):
    """RetNet: S_t = gamma_h S_(t-1) + k_t v_t', with gamma_h = 1 - 2^(-5-h) for head h = 0..H-1.

    Head h forgets one half in about 2^(5+h) ln 2 tokens. The published sizes are V = 2K
    (model.value_dim), with 8 heads at a width of 2,048.

    Source: Sun et al. 2023, arXiv:2307.08621. Beyond it: where features are read, a convolution
    on what makes them.
    """

    provides: ClassVar[frozenset[str]] = frozenset(
        {"linear", "features", "gated", "bounded", "symmetric"}
    )

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """Rotary positions, RMSNorm a head and a SiLU gate; no convolution, activation or L2."""
        conv = {"conv": 4, "conv_streams": ("q", "k")} if "features" in read.requires else {}
        return {"rope_base": 10_000.0, "output_norm": "rms", "output_gate": "silu", **conv}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Add every token at its key."""
        head = torch.arange(k.shape[2], device=k.device, dtype=compute_dtype(k))
        # Not log(gamma): gamma itself rounds to 1 for the slow heads.
        g = torch.log1p(-torch.exp2(-5 - head))
        return GatedMemory(k, v, g=g.expand(k.shape[:3]))
