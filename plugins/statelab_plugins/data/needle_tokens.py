"""A needle in a haystack of plain tokens, for models of toy size.

Source: the same shape as Hsieh et al. 2024, "RULER", arXiv:2404.06654; the vocabulary is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream, distinct
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.answers import HELD_OUT, AnswerData, Cell, Draw, Part, Tokens
from statelab_plugins.data.grid import GridConfig

__all__ = ["NeedleTokens", "NeedleTokensConfig"]

_ASK = 0


@dataclass(frozen=True, kw_only=True)
class NeedleTokensConfig(GridConfig):
    """Sizes that a tiny model learns in seconds."""

    seq_len: int = option(128, "the longest example's tokens", at_least=1, smoke=128)
    lengths: tuple[int, ...] = option(
        (32, 64), "tokens of training examples, the answer's too", at_least=1, smoke=(32, 64)
    )
    vocab_size: int = option(
        64, "tokens: one asks, a third are keys, a third values", at_least=24, at_most=2**14
    )
    value_tokens: int = option(2, "tokens of a value", at_least=1, at_most=8)
    distractors: int = option(
        0, "other keys with values in the text, which aren't asked for", at_least=0
    )
    filler: Literal["noise", "random"] = option(
        "noise", "one token again and again, or any of the last third of the vocabulary"
    )

    def __post_init__(self) -> None:
        GridConfig.__post_init__(self)
        if self.distractors >= self.num_words:
            raise ConfigError(
                f"data.distractors={self.distractors}: data.vocab_size={self.vocab_size} has "
                f"{self.num_words} keys. Give fewer, or data.vocab_size="
                f"{3 * self.distractors + 4} or more."
            )
        least = (self.distractors + 2) * (1 + self.value_tokens) + 2
        shortest = min(self.lengths + self.val_lengths)
        if shortest < least:
            raise ConfigError(
                f"data.lengths: {shortest} tokens have no room for {self.distractors + 1} needles "
                f"and a question. Make it {least} or more."
            )

    @property
    def num_words(self) -> int:
        """How many keys there are, and how many values' tokens."""
        return (self.vocab_size - 1) // 3


@data_modules.register("needle_tokens", config=NeedleTokensConfig)
class NeedleTokens(AnswerData):
    """Somewhere in the filler stands a key with its value; at the end, the key is asked for.

        tokens   .  .  .  k9 v4 v7 .  .  .  .  ?  k9 v4 v7
        labels   -  -  -  -  -  -  -  -  -  -  -  v4 v7 -

    Of V tokens 0 asks, (V - 1) / 3 are keys, as many are values', and the rest is filler. No key
    with its value is in both splits; every token is. With distractors there are more keys, each
    with a value of its own, at places drawn apart: then it takes an association to know which.
    """

    config: NeedleTokensConfig

    def __init__(self, config: NeedleTokensConfig) -> None:
        super().__init__(config, config.train_cells, config.val_cells)
        self.vocab_size = config.vocab_size

    def example(self, cell: Cell, split: Stream, draw: Draw) -> Iterator[Part]:
        """Filler with needles in it, and the question."""
        config, num = self.config, 1 + self.config.distractors
        n = config.value_tokens
        size = cell.size - num * (1 + n) - 2 - n
        u = draw(num * (n + 2) + 1 + size)
        for_keys, for_values, for_places, for_filler = np.split(
            u, np.cumsum([num, num * n, num + 1])
        )
        keys = distinct(for_keys[None], config.num_words)[0]
        needles = [
            self._needle(int(key), each, split)
            for key, each in zip(keys, for_values.reshape(num, n), strict=True)
        ]
        depths = for_places[:num]
        if cell.depth is not None:
            depths[0] = cell.depth / 100
        places = np.rint(depths * size).astype(np.int64)
        filler = self._filler(for_filler)
        done = 0
        for i in np.argsort(places, kind="stable"):
            yield filler[done : places[i]], False
            yield needles[i], False
            done = places[i]
        yield filler[done:], False
        yield np.array([_ASK]), False
        yield needles[0][:1], False
        yield needles[0][1:], True

    def _needle(self, key: int, u: NDArray[np.float64], split: Stream) -> Tokens:
        """A key and its value, whose last token says which split they are of."""
        num = self.config.num_words
        first = (u[:-1] * num).astype(np.int64)
        left = np.arange(num)
        of_val = (left + key + first.sum()) % HELD_OUT == 0
        able = left[of_val == (split == Stream.VAL)]
        value = [*first, able[int(u[-1] * len(able))]]
        return 1 + np.array([key, *(num + each for each in value)])

    def _filler(self, u: NDArray[np.float64]) -> Tokens:
        first = 1 + 2 * self.config.num_words
        if self.config.filler == "noise":
            return np.full(len(u), first)
        return first + (u * (self.config.vocab_size - first)).astype(np.int64)
