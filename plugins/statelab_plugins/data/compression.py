"""Compression: one hidden vector from which every token of the sequence can be told.

Source: Poli et al. 2024, arXiv:2403.17844, section 3.1 and its code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.drawn import Arrays, DrawnConfig, DrawnData

__all__ = ["Compression", "CompressionConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionConfig(DrawnConfig):
    """The defaults are MAD's base setting."""

    seq_len: int = option(32, "tokens a sequence", at_least=2)
    vocab_size: int = option(16, "tokens; the last one ends a sequence", at_least=2)


@data_modules.register("compression", config=CompressionConfig)
class Compression(DrawnData):
    """Tokens drawn from 0 .. V - 2, then V - 1; the label of each position is its own token.

        tokens   5 11 3 3 ... 8 15
        labels   5 11 3 3 ... 8 15

    No position sees its own token when it predicts: the model is built to read all of them out of
    the last one's hidden vector (`readout` is "last"), told the position and nothing else:

        logits_t = head(norm(MLP(x_T + p_t)))

    `statelab.model.readout.LastReadout` is that MLP: norm, linear, GELU, norm, linear, GELU, of the
    model's width, with fixed sinusoids p_t, as in MAD's auto-encoder. What differs from it: the
    head has no bias, and is the embedding where `model.tie_embeddings` says so.
    """

    readout = "last"
    config: CompressionConfig

    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """Draw tokens, and end them."""
        T, V = self.config.seq_len, self.vocab_size
        drawn = (self.uniform(split, index, T - 1) * (V - 1)).astype(np.int64)
        tokens = np.pad(drawn, ((0, 0), (0, 1)), constant_values=V - 1)
        return {"tokens": tokens, "labels": tokens.copy()}
