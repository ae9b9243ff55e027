"""How large a model is: parameters, state and floating-point operations, without building it.

Everything is measured on the meta device, from the same code that trains, so that a rule of
anybody's is counted right without saying its own size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from statelab.build import build_model
from statelab.config import Config
from statelab.context import Context, State
from statelab.decoder import Decoder
from statelab.layers import layer_list
from statelab.loading import to_dict

__all__ = ["Sizes", "measure"]

#: Slots that hold the input's last tokens, not what the memory has of them.
_NO_MEMORY = ("conv", "position")


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
    state = _state(model, config.data.seq_len)
    slots = {name: tensor.nbytes for name, tensor in state.items()}
    memory = {
        name: size for name, size in slots.items() if not set(_NO_MEMORY) & set(name.split("."))
    }
    per_layer = [
        {
            "kind": layer.kind,
            "parameters": sum(p.numel() for p in model.layers[index].parameters()),
            "state": {
                name.removeprefix(f"layers.{index}."): size
                for name, size in slots.items()
                if name.startswith(f"layers.{index}.")
            },
        }
        for index, layer in enumerate(layer_list(config.model))
    ]
    return Sizes(
        parameters=sum(p.numel() for p in model.parameters()),
        state_bytes=sum(slots.values()),
        memory_bytes=sum(memory.values()),
        per_layer=per_layer,
        flops_per_token=_flops(model, config),
        config=to_dict(config),
    )


def _state(model: Decoder, seq_len: int) -> State:
    """The state after one sequence; only a cache grows with it."""
    grows = any("cache" in block.mixer.write.provides for block in _mixers(model))
    tokens = torch.zeros(1, seq_len if grows else 1, dtype=torch.int64, device="meta")
    with torch.no_grad():
        _, state = model.hidden(tokens)
    return state


def _mixers(model: Decoder) -> list[Any]:
    return [block for block in model.layers if hasattr(block.mixer, "write")]


def _flops(model: Decoder, config: Config) -> int:
    """Forward operations a token; layers of one kind are run once."""
    seq_len = config.data.seq_len
    x = torch.zeros(1, seq_len, config.model.d_model, device="meta")
    cost: dict[Any, int] = {}
    total = 2 * model.head.weight.numel() * seq_len
    for index, layer in enumerate(layer_list(config.model)):
        if layer not in cost:
            context = Context(1, seq_len, device=x.device, backend=config.model.backend)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                model.layers[index](x, context.scope(f"layers.{index}"))
            cost[layer] = counter.get_total_flops()
        total += cost[layer]
    return total // seq_len
