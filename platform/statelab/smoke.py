"""`smoke=true`: any experiment at toy size, for two steps, to see that it runs at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from statelab.values import BLOCKS

__all__ = ["smoke_values"]

_COMMON: dict[str, Any] = {
    "smoke": True,
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.head_dim": 16,
    "model.value_dim": 16,
    "model.mlp_hidden": 64,
    "data.batch_size": 2,
    "data.seq_len": 64,
    "data.num_workers": 0,
    "optim.warmup_steps": 1,
    "trainer.max_steps": 2,
    "trainer.max_tokens": None,
    "trainer.accumulate": 1,
    "trainer.precision": "32-true",
    "trainer.devices": 1,
    "trainer.num_nodes": 1,
    "trainer.strategy": "auto",
    "trainer.val_every": 2,
    "trainer.val_batches": 1,
    "trainer.checkpoint_every": None,
    "tracking.figures": False,
}


def smoke_values(plugins: Iterable[tuple[str, str]], *, layers: bool) -> dict[str, Any]:
    """The keys to set: these, and those of plugins whose option says `smoke=`.

    Args:
        plugins: (block, name) of the rules and the data that are used.
        layers: Whether the experiment names its layers; else two are taken.
    """
    values = _COMMON | {"model.num_layers": None if layers else 2}
    for block, name in plugins:
        for option in dataclasses.fields(BLOCKS[block].get(name).config):
            if "smoke" in option.metadata:
                values[f"{block}.{option.name}"] = option.metadata["smoke"]
    return values
