"""The token mixer: a write rule, a read rule, and the steps around them.

    x -> W_q W_k W_v -> short conv -> RoPE -> activation -> L2 of q and k -> q * K^-0.5
      -> the write rule makes the memory -> the read rule reads it
      -> RMSNorm a head -> gate -> W_o

All steps but the rules are options (`model.mixer`).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from statelab.config import MixerConfig, ModelConfig, RuleConfig
from statelab.errors import ConfigError
from statelab.model.context import Context
from statelab.model.conv import ShortConv
from statelab.model.initialise import reset_linear, reset_residual
from statelab.model.norms import RMSNorm, l2_normalize
from statelab.model.rope import rope
from statelab.registries import read_rules, write_rules
from statelab.rules import MixerDims, make_memory

__all__ = ["Mixer"]


class Mixer(nn.Module):
    """One layer's write rule and read rule, with all that stands around them.

    Args:
        model: Sizes.
        mixer: The steps.
        write: The write rule.
        read: The read rule.
        layer: Index of the layer, from 0.
        num_layers: Layers in all.
    """

    def __init__(
        self,
        model: ModelConfig,
        mixer: MixerConfig,
        write: RuleConfig,
        read: RuleConfig,
        *,
        layer: int,
        num_layers: int,
    ) -> None:
        super().__init__()
        assert model.head_dim is not None
        assert model.value_dim is not None
        self.config = mixer
        self.num_heads = model.num_heads
        write_rule, read_rule = write_rules.get(write.name), read_rules.get(read.name)
        self.dims = MixerDims(
            d_model=model.d_model,
            num_heads=model.num_heads,
            key_dim=model.head_dim,
            value_dim=model.value_dim,
            layer=layer,
            num_layers=num_layers,
            init_std=model.init_std,
            read=read_rule.cls,
        )
        self.write = write_rule.cls(write.options, self.dims)
        self.read = read_rule.cls(read.options, self.dims)
        if mixer.rope_base and model.head_dim % 2:
            raise ConfigError(
                f"model.head_dim={model.head_dim} is odd, and the rotary embedding turns pairs; "
                "use an even one, or model.mixer.rope_base=0."
            )

        widths = {"v": model.num_heads * model.value_dim}
        if self.write.uses_query:
            widths["q"] = model.num_heads * model.head_dim
        if self.write.uses_key:
            widths["k"] = model.num_heads * model.head_dim
        d, out = model.d_model, model.num_heads * self.write.out_dim
        self.proj = nn.ModuleDict({s: nn.Linear(d, n, bias=False) for s, n in widths.items()})
        self.conv = nn.ModuleDict(
            {s: ShortConv(n, mixer.conv) for s, n in widths.items() if self._convolves(s)}
        )
        norm, gate = mixer.output_norm != "none", mixer.output_gate != "none"
        self.norm = RMSNorm(self.write.out_dim, eps=1e-5) if norm else None
        self.gate_proj = nn.Linear(d, out, bias=False) if gate else None
        self.o_proj = nn.Linear(out, d, bias=False)

    def reset_parameters(self) -> None:
        """Initialise every parameter, the rules' own last."""
        reset_linear(self, self.dims.init_std)
        for conv in self.conv.values():
            assert isinstance(conv, ShortConv)
            conv.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()
        reset_residual(self.o_proj, self.dims.init_std, self.dims.num_layers)
        self.write.reset_parameters()
        self.read.reset_parameters()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Mix x [B, T, d_model], the layer's normalised input, over time."""
        streams = {name: self._stream(name, x, context) for name in self.proj}
        q, k, v = streams.get("q"), streams.get("k"), streams["v"]
        memory = make_memory(self.write, x, k, v).bind(context)
        o = self.read(q, k, memory)  # [B, T, H, out_dim]
        if self.norm is not None:
            o = self.norm(o)
        o = o.flatten(2)
        if self.gate_proj is not None:
            gate = F.silu if self.config.output_gate == "silu" else F.sigmoid
            o = o * gate(self.gate_proj(x))
        mixed: Tensor = self.o_proj(o)
        return mixed

    def _convolves(self, stream: str) -> bool:
        return self.config.conv > 0 and stream in self.config.conv_streams

    def _stream(self, name: str, x: Tensor, context: Context) -> Tensor:
        s: Tensor = self.proj[name](x)
        if name in self.conv:
            s = self.conv[name](s, context, f"conv.{name}")
        s = s.reshape(*s.shape[:2], self.num_heads, -1)
        if self.config.rope_base and name != "v":
            s = rope(s, context.positions, self.config.rope_base)
        if self.config.activation == "silu" and (name != "v" or name in self.conv):
            s = F.silu(s)
        if self.config.qk_norm == "l2" and name != "v":
            s = l2_normalize(s)
        if self.config.query_scale and name == "q":
            s = s * self.dims.key_dim**-0.5
        return s
