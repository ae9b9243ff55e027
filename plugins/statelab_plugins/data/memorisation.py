"""Memorisation: facts that only the weights can hold.

Source: Poli et al. 2024, arXiv:2403.17844, section 3.1 and its code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream, distinct, uniform
from statelab.data.module import IGNORED
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.drawn import Arrays, DrawnConfig, DrawnData

__all__ = ["Memorisation", "MemorisationConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorisationConfig(DrawnConfig):
    """The defaults are MAD's base setting."""

    seq_len: int = option(32, "tokens a sequence, an even number", at_least=2)
    vocab_size: int = option(256, "tokens; the last one asks, half the others are keys", at_least=4)
    num_train: int = option(
        256, "training examples, of seq_len / 2 facts each", at_least=1, smoke=16
    )

    def __post_init__(self) -> None:
        DrawnConfig.__post_init__(self)
        if self.seq_len % 2:
            raise ConfigError(
                f"data.seq_len={self.seq_len} must be even, since a key and the question take 2 "
                f"tokens; try {self.seq_len + 1}."
            )


@data_modules.register("memorisation", config=MemorisationConfig)
class Memorisation(DrawnData):
    """Facts, the same in all examples: each key has one value, which is never shown.

        tokens   k7 ? k2 ? k7 ? ...
        labels   -  v -  w -  v

    Of V tokens the last one is the question, the others are keys (the lower half) and values. The
    values are drawn without replacement, by `data.seed` alone: training and validation have the
    same facts, in other sequences. Keys are drawn with replacement; one that no training example
    has can't be known. At 256 examples of 16 facts that is none of the 127 keys of 256 tokens,
    and 37 % of the 4,095 of 8,192.
    """

    config: MemorisationConfig

    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """Draw keys, and look their values up."""
        facts, V = self.facts(), self.vocab_size
        u = self.uniform(split, index, self.config.seq_len // 2)
        keys = (u * len(facts)).astype(np.int64)
        tokens = np.stack([keys, np.full_like(keys, V - 1)], axis=2)
        labels = np.stack([np.full_like(keys, IGNORED), facts[keys]], axis=2)
        return {"tokens": tokens.reshape(len(keys), -1), "labels": labels.reshape(len(keys), -1)}

    def facts(self) -> NDArray[np.int64]:
        """The value of each key."""
        num_keys = (self.vocab_size - 1) // 2
        num_values = self.vocab_size - 1 - num_keys
        u = uniform(self.config.seed, Stream.FACTS, 0, np.arange(num_keys))
        values: NDArray[np.int64] = num_keys + distinct(u[None], num_values)[0]
        return values
