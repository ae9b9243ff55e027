"""Mamba-2: a step in time, set by the input, says how much is forgotten and how much is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import Section
from statelab.rules import MixerDims, ParamOptions, ReadRule, write_rules
from statelab_plugins.mamba_gate import MambaGate, MambaGatedRule
from statelab_plugins.memory import GatedMemory

__all__ = ["Mamba2", "Mamba2Config", "SkipMemory"]


class SkipMemory(GatedMemory):
    """A gated memory whose values pass it by as well: o_t = S_t' c_t + D v_t.

    Only a recall of the values has the skip; streams that a read rule writes have none.

    Args:
        k: Keys, [B, T, H, K].
        v: Values, [B, T, H, V].
        g: Log decay, [B, T, H].
        weight: Write weight, [B, T, H].
        skip: D, [H].
    """

    def __init__(
        self,
        k: Float[Tensor, "B T H K"],
        v: Float[Tensor, "B T H V"],
        *,
        g: Float[Tensor, "B T H"],
        weight: Float[Tensor, "B T H"],
        skip: Float[Tensor, " H"],
    ) -> None:
        super().__init__(k, v, g=g, weight=weight)
        self._skip = skip

    def recall(self, c: Tensor) -> Tensor:
        """o_t = S_t' c_t + D v_t, [B, T, H, V]."""
        return super().recall(c) + self._skip[:, None].to(self.values.dtype) * self.values


@dataclass(frozen=True, kw_only=True, slots=True)
class Mamba2Config(Section):
    """Mamba-2 has no options."""


@write_rules.register("mamba2", config=Mamba2Config)
class Mamba2(MambaGatedRule):
    """Mamba-2: S_t = exp(g_t) S_(t-1) + dt_t k_t v_t', read as o_t = S_t' q_t + D v_t.

    dt = softplus(W x + dt_bias) and g = -exp(A_log) dt, scalars a head, A from U(1, 16). In the
    paper's letters q is C, k is B, v is x. dt weights the write, whatever the stream; statistics
    see the key without it. Published sizes: K = 128, V = 64, H V twice the width, no MLP
    (model.mlp=none).

    The published block differs in what stands around the memory: all heads share one B and one C,
    its convolution has a bias, and it gates before its norm, which spans all heads.

    Source: Dao and Gu 2024, arXiv:2405.21060.
    """

    provides: ClassVar[frozenset[str]] = frozenset(
        {"linear", "features", "gated", "bounded", "symmetric"}
    )

    def __init__(self, config: Mamba2Config, dims: MixerDims) -> None:
        super().__init__(config, dims)
        heads = dims.num_heads
        self.gate = MambaGate(nn.Linear(dims.d_model, heads, bias=False), heads, min_rate=1.0)
        self.skip = nn.Parameter(torch.empty(heads))

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """Convolution and SiLU on q, k and v, none of them scaled; RMSNorm and SiLU gate."""
        return {
            "conv": 4,
            "conv_streams": ("q", "k", "v"),
            "activation": "silu",
            "query_scale": False,
            "output_norm": "rms",
            "output_gate": "silu",
        }

    def reset_parameters(self) -> None:
        """D = 1; the gate as its own."""
        super().reset_parameters()
        nn.init.ones_(self.skip)

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on A_log, dt_bias and D."""
        return {**super().parameter_options(), "skip": ParamOptions(weight_decay=False)}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> SkipMemory:
        """Fade everything by the step, and add the token, weighted by it."""
        step = self.gate.step(x)
        return SkipMemory(k, v, g=self.gate.log_decay(step), weight=step, skip=self.skip)
