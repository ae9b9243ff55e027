"""A pair of rules with inputs that suit them, on the level of the rules themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from statelab.model.context import Context, State
from statelab.model.norms import l2_normalize
from statelab.rules import MixerDims, ReadRule, WriteRule, read_rules, write_rules

D_MODEL, HEADS, KEY_DIM, VALUE_DIM = 10, 2, 4, 6


@dataclass
class Pair:
    """A write rule, a read rule, and the streams that a mixer would hand them."""

    write: WriteRule
    read: ReadRule
    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor

    def run(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        rows: slice = slice(None),
        state: State | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Output and state of the tokens from `first` to `last`."""
        x, q, k, v = (each[rows, first:last] for each in (self.x, self.q, self.k, self.v))
        context = Context(*x.shape[:2], device=x.device, state=state, cu_seqlens=cu_seqlens)
        memory = self.write(x, k, v).bind(context.scope("layer"))
        return self.read(q if self.write.uses_query else None, k, memory), context.outgoing


@pytest.fixture
def make() -> Callable[..., Pair]:
    """Build a pair whose every parameter matters, with a batch of 2 and unit q and k."""

    def build(
        write: str,
        read: str,
        *,
        tokens: int = 20,
        write_options: dict[str, Any] | None = None,
        read_options: dict[str, Any] | None = None,
        dtype: torch.dtype = torch.float64,
        unit: bool = True,
    ) -> Pair:
        torch.manual_seed(0)
        x, q, k, v = (
            torch.randn(2, tokens, *shape, dtype=dtype)
            for shape in ((D_MODEL,), (HEADS, KEY_DIM), (HEADS, KEY_DIM), (HEADS, VALUE_DIM))
        )
        if unit:
            q, k = l2_normalize(q), l2_normalize(k)
        writer, reader = write_rules.get(write), read_rules.get(read)
        dims = MixerDims(
            d_model=D_MODEL,
            num_heads=HEADS,
            key_dim=KEY_DIM,
            value_dim=VALUE_DIM,
            layer=0,
            num_layers=1,
            init_std=0.02,
            read=reader.cls,
        )
        options = {"num_modes": 5} if write == "s4d" else {}
        rules = (
            writer.cls(writer.config(**{**options, **(write_options or {})}), dims),
            reader.cls(reader.config(**(read_options or {})), dims),
        )
        for rule in rules:
            rule.reset_parameters()
            rule.to(dtype)
            for parameter in rule.parameters():
                with torch.no_grad():
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return Pair(*rules, x, q, k, v)

    return build
