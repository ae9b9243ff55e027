"""Gated linear attention: every channel of the key decays at a pace that the input sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import Section, option
from statelab.rules import MixerDims, ParamOptions, ReadRule, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.hedgehog import Hedgehog
from statelab_plugins.memory import GatedMemory

__all__ = ["GLA", "GLAConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GLAConfig(Section):
    """Options of gated linear attention."""

    gate_rank: int = option(16, "rank of the map from the input to the log decay", at_least=1)
    gate_normalizer: float = option(16.0, "what the log decay is divided by", above=0)
    feature_map: Literal["none", "hedgehog"] = option(
        "none", "learned map of q and k to positive features, which doubles the key size"
    )


@write_rules.register("gla", config=GLAConfig)
class GLA(WriteRule):
    """Gated linear attention: S_t = diag(exp g_t) S_(t-1) + k_t v_t', one decay a key channel.

    g = logsigmoid(W2 W1 x + b) / gate_normalizer.

    With feature_map=hedgehog the address is phi(k), and a query comes to it through a phi of its
    own (`lift`), after whatever a read rule does to it. The key for statistics and the stream of
    features are still k: a read through features weighs keys by k . q, and needs no map of q.

    Source: Yang et al. 2023, arXiv:2312.06635; Hedgehog: arXiv:2402.04347.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"linear", "features", "gated", "bounded"})

    def __init__(self, config: GLAConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        mapped = config.feature_map == "hedgehog"
        lifts = mapped and "features" not in dims.read.requires
        heads, size = dims.num_heads, dims.key_dim
        self.key_map = Hedgehog(heads, size) if mapped else None
        self.query_map = Hedgehog(heads, size) if lifts else None
        self.gate_proj = nn.Sequential(
            nn.Linear(dims.d_model, config.gate_rank, bias=False),
            nn.Linear(config.gate_rank, heads * size * (2 if mapped else 1)),
        )

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """Output norm and SiLU gate; where features are read, a convolution on what makes them."""
        conv = {"conv": 4, "conv_streams": ("q", "k")} if "features" in read.requires else {}
        return {"query_scale": True, "output_norm": "rms", "output_gate": "silu", **conv}

    def reset_parameters(self) -> None:
        """Linear maps as everywhere: all decays start near 1/2 to the 1 / gate_normalizer."""
        super().reset_parameters()
        for feature_map in (self.key_map, self.query_map):
            if feature_map is not None:
                feature_map.reset_parameters()

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on the feature maps' biases, which are a matrix for all heads."""
        names = (name for name, _ in self.named_parameters() if name.endswith("map.bias"))
        return dict.fromkeys(names, ParamOptions(weight_decay=False))

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> GatedMemory:
        """Add every token at its key, or at its key's features."""
        gate = self.gate_proj(x)
        g = F.logsigmoid(gate.to(compute_dtype(gate))) / self.config.gate_normalizer
        return GatedMemory(
            k,
            v,
            g=g.unflatten(-1, (self.dims.num_heads, -1)),
            address=None if self.key_map is None else self.key_map(k),
            query_map=self.query_map,
        )
