"""How large a model is: parameters, state and floating-point operations, without building it.

Everything is measured on the meta device, from the same code that trains, so that a rule of
anybody's is counted right without saying its own size.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from statelab.config import Config
from statelab.loading import to_dict
from statelab.model.build import build_model
from statelab.model.context import Context
from statelab.model.decoder import Decoder
from statelab.model.layers import layer_list

__all__ = ["Sizes", "measure"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What `statelab describe` prints.

    Attributes:
        parameters: Numbers, tied ones once.
        state_bytes: All state slots of one sequence at inference (a cache: at data.seq_len).
        memory_bytes: The same without the convolutions' inputs and the position.
        per_layer: For each layer its kind, parameters and state slots in bytes.
        flops_per_token: Of matrix products, forward, averaged over data.seq_len tokens.
        config: The configuration.
    """

    parameters: int
    state_bytes: int
    memory_bytes: int
    per_layer: list[dict[str, Any]]
    flops_per_token: int
    config: dict[str, Any]


def measure(config: Config) -> Sizes:
    """Measure a model on the meta device."""
    model = build_model(config, device="meta")
    passes = _passes(model, config)
    # All layers share the position.
    position = passes[0].state["position"]
    states = [{k: v for k, v in each.state.items() if k != "position"} for each in passes]
    conv = [size for state in states for name, size in state.items() if name.startswith("conv")]
    state_bytes = position + sum(sum(state.values()) for state in states)
    flops = sum(each.flops for each in passes) // config.data.seq_len
    return Sizes(
        parameters=sum(p.numel() for p in model.parameters()),
        state_bytes=state_bytes,
        memory_bytes=state_bytes - position - sum(conv),
        per_layer=[
            {
                "kind": layer.kind,
                "parameters": sum(p.numel() for p in block.parameters()),
                "state": state,
            }
            for layer, block, state in zip(
                layer_list(config.model), model.layers, states, strict=True
            )
        ],
        flops_per_token=flops + 2 * sum(each.numel() for each in _matrices(model)),
        config=to_dict(config),
    )


def _matrices(model: Decoder) -> list[torch.Tensor]:
    """What each token passes after the layers."""
    after = [] if model.readout is None else [*model.readout.parameters()]
    return [model.head.weight, *(each for each in after if each.ndim == 2)]


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one sequence leaves of a layer: its state slots in bytes, and the operations."""

    state: dict[str, int]
    flops: int


def _passes(model: Decoder, config: Config) -> list[_Pass]:
    """One for each layer; of layers alike in kind and parameters one is run."""
    seq_len = config.data.seq_len
    x = torch.zeros(1, seq_len, config.model.d_model, device="meta")
    known: dict[Hashable, _Pass] = {}
    passes = []
    for layer, block in zip(layer_list(config.model), model.layers, strict=True):
        alike = (layer, *((name, p.shape) for name, p in block.named_parameters()))
        if alike not in known:
            context = Context(1, seq_len, device=x.device, backend=config.model.backend)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                block(x, context)
            state = {name: tensor.nbytes for name, tensor in context.outgoing.items()}
            known[alike] = _Pass(state, counter.get_total_flops())
        passes.append(known[alike])
    return passes
