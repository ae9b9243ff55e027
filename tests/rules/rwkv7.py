"""RWKV-7's recurrence as a rule that gives only its step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from statelab.model.norms import l2_normalize
from statelab.options import Section, option
from statelab.rules import ParamOptions, ScanMemory, WriteRule, write_rules


@dataclass(frozen=True, kw_only=True, slots=True)
class RWKV7Config(Section):
    fastest: float = option(-0.6065, "least log decay of a token", below=0)


@write_rules.register("rwkv7", config=RWKV7Config)
class RWKV7(WriteRule):
    """S_t = (diag(exp g_t) - (eta_t * u_t) u_t') S_(t-1) + r_t v_t'.

    g = fastest * sigmoid(W_g x) and eta = sigmoid(W_eta x) a channel, u = k_k * k of unit length,
    and the write key r = k * (1 + (eta - 1) * k_a): three directions, where a delta rule has one.

    Source: Peng et al., arXiv:2503.14456, without token shift, bonus and layer-0 values.
    """

    provides: ClassVar = frozenset({"linear", "features", "bounded"})

    def __init__(self, config, dims):
        super().__init__(config, dims)
        size = dims.num_heads * dims.key_dim
        self.decay_proj = nn.Linear(dims.d_model, size)
        self.rate_proj = nn.Linear(dims.d_model, size)
        self.k_k = nn.Parameter(torch.empty(dims.num_heads, dims.key_dim))
        self.k_a = nn.Parameter(torch.empty(dims.num_heads, dims.key_dim))

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.constant_(self.k_k, 0.71)
        nn.init.constant_(self.k_a, 1.02)

    def parameter_options(self):
        return {name: ParamOptions(weight_decay=False) for name in ("k_k", "k_a")}

    def forward(self, x, k, v):
        g = self.config.fastest * self.decay_proj(x).sigmoid().view_as(k)
        eta = self.rate_proj(x).sigmoid().view_as(k)
        u = l2_normalize(k * self.k_k)
        return RWKV7Memory(k, v, g, eta * u, u, k * (1 + (eta - 1) * self.k_a))


class RWKV7Memory(ScanMemory):
    def step(self, S: Tensor, s: Tensor, *inputs: Tensor) -> Tensor:
        g, b, a, r = (each[..., None] for each in inputs)  # [N, H, K, 1]
        return g.exp() * S - b * (a.mT @ S) + r * s[..., None, :]
