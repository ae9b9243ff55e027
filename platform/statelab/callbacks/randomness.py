"""The state of all random draws, saved with each checkpoint and put back."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch

__all__ = ["Randomness"]


class Randomness(L.Callback):
    """Continues the generators of Python, NumPy and torch; stands before whatever may draw.

    The data needs none of them. Every process takes those of the first one and its device: they
    begin alike and draw alike.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}
        self._held: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values; in the middle of a validation, which is repeated, those at its start."""
        return self._held or _state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep them: making the loaders may draw too."""
        self._loaded = state_dict

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put them back."""
        if self._loaded:
            _restore(self._loaded)
            self._loaded = {}

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hold them."""
        self._held = _state()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let them go."""
        self._held = {}


def _state() -> dict[str, Any]:
    kind, words, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(words).copy()), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy(), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
