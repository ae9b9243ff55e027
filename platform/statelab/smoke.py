"""`smoke=true`: any experiment at toy size, for two steps, to see that it runs at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
_PLUGINS: dict[tuple[str, str], dict[str, Any]] = {
    ("model.write", "s4d"): {"num_modes": 8},
    ("data", "mqar"): {"num_pairs": [4], "num_train": 16, "num_val": 8},
    ("data", "text"): {"max_bytes": 65536},
}


def smoke_values(plugins: Iterable[tuple[str, str]], *, layers: bool) -> dict[str, Any]:
    """The keys to set.

    Args:
        plugins: (block, name) of the rules and the data that are used.
        layers: Whether the experiment names its layers; else two are taken.
    """
    values = _COMMON | {"model.num_layers": None if layers else 2}
    for block, name in plugins:
        for key, value in _PLUGINS.get((block, name), {}).items():
            values[f"{block}.{key}"] = value
    return values
