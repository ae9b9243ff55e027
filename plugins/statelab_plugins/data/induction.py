"""Induction: say what stood after this token the last time.

Source: Fu, Dao et al. 2022, "Hungry hungry hippos", arXiv:2212.14052, section 3.1; Gu and Dao
2023, arXiv:2312.00752, section 4.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream
from statelab.data.module import IGNORED
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.drawn import Arrays, DrawnConfig, DrawnData

__all__ = ["Induction", "InductionConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InductionConfig(DrawnConfig):
    """The defaults are the sizes of arXiv:2312.00752; how many examples is ours."""

    seq_len: int = option(256, "tokens a sequence", at_least=3)
    vocab_size: int = option(16, "tokens; the last one is the sign", at_least=3)


@data_modules.register("induction", config=InductionConfig)
class Induction(DrawnData):
    """Random tokens with a sign > among them and once more at the end: what stood after it?

        tokens   3 8 1 > 6 2 8 5 >
        labels   - - - - - - - - 6

    Of V tokens the sign is V - 1; all others are drawn from 0 .. V - 2. The first sign stands at
    any of the places that leave room for a token before the second, all with the same chance.
    """

    config: InductionConfig

    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """Draw tokens, and the place of the first sign."""
        T, V, rows = self.config.seq_len, self.vocab_size, np.arange(len(index))
        u = self.uniform(split, index, T)
        tokens = (u * (V - 1)).astype(np.int64)
        place = (u[:, -1] * (T - 2)).astype(np.int64)
        tokens[rows, place] = tokens[:, -1] = V - 1
        labels = np.full_like(tokens, IGNORED)
        labels[:, -1] = tokens[rows, place + 1]
        return {"tokens": tokens, "labels": labels}
