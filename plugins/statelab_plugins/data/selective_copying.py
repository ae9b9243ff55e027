"""Selective copying: say again, in their order, the tokens that stood among blanks.

Source: Poli et al. 2024, arXiv:2403.17844, section 3.1 and its code; Gu and Dao 2023,
arXiv:2312.00752, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream
from statelab.data.module import IGNORED
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.drawn import Arrays, DrawnConfig, DrawnData

__all__ = ["SelectiveCopying", "SelectiveCopyingConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectiveCopyingConfig(DrawnConfig):
    """The defaults are MAD's base setting."""

    vocab_size: int = option(16, "tokens; the last two are the blank and the sign", at_least=4)
    num_copy: int = option(16, "tokens to copy", at_least=1, smoke=4)

    def __post_init__(self) -> None:
        DrawnConfig.__post_init__(self)
        if self.seq_len < 2 * self.num_copy + 1:
            raise ConfigError(
                f"data.seq_len={self.seq_len} has no room for data.num_copy={self.num_copy}: a "
                "token and its copy take 2, the sign 1. Set data.seq_len="
                f"{2 * self.num_copy + 1} or more, or copy fewer."
            )


@data_modules.register("selective_copying", config=SelectiveCopyingConfig)
class SelectiveCopying(DrawnData):
    """Selective copying of n tokens in T, of V tokens the blank _ is V - 2 and the sign > V - 1.

        tokens   _ 5 _ _ 2 _ 7 7 > _ _ _ _
        labels   - - - - - - - - - 5 2 7 7

    The n tokens are drawn from 0 .. V - 3, a token perhaps several times. Each of the T - 2n - 1
    blanks among them stands before one of them, all with the same chance; so the sign follows the
    last token at once. After it come n blanks, each of which says the next of the tokens.
    """

    config: SelectiveCopyingConfig

    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """Draw tokens, and which of them each blank stands before."""
        T, n, V = self.config.seq_len, self.config.num_copy, self.vocab_size
        u = self.uniform(split, index, T - n - 1)
        copied = (u[:, :n] * (V - 2)).astype(np.int64)
        before = (u[:, n:] * n).astype(np.int64)
        num_blanks = np.stack([(before <= i).sum(axis=1) for i in range(n)], axis=1)

        tokens = np.full((len(index), T), V - 2)
        np.put_along_axis(tokens, num_blanks + np.arange(n), copied, axis=1)
        tokens[:, T - n - 1] = V - 1
        labels = np.full_like(tokens, IGNORED)
        labels[:, T - n :] = copied
        return {"tokens": tokens, "labels": labels}
