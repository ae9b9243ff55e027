"""Windows of a stream of tokens, which follow each other without loss or overlap."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statelab.data.module import IGNORED, Batch

__all__ = ["TokenStream", "Windows"]


class TokenStream(Protocol):
    """The documents of a split, one after the other; loader processes get a pickled copy."""

    def __len__(self) -> int:
        """How many tokens there are."""

    def tokens(self, places: Tensor) -> Tensor:
        """The tokens at these places, int64, both of the same shape."""

    def ends(self, places: Tensor) -> Tensor:
        """Whether the last token of a document stands there."""

    def num_bytes(self, places: Tensor) -> Tensor | None:
        """How many bytes of text the tokens there stand for, int64; None where it isn't kept."""


class Windows:
    """Window i predicts the tokens i T + 1 .. i T + T from i T .. i T + T - 1.

    Labels past the end of the stream are ignored.

    Args:
        stream: At least two tokens.
        seq_len: T.
    """

    def __init__(self, stream: TokenStream, seq_len: int) -> None:
        self._stream = stream
        self._seq_len = seq_len

    def __len__(self) -> int:
        return -(-(len(self._stream) - 1) // self._seq_len)

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """The windows of these numbers; with `bytes` of each label, where the stream has them."""
        starts = torch.from_numpy(index * self._seq_len)
        places = starts[:, None] + torch.arange(self._seq_len + 1)
        past_end = places >= len(self._stream)
        places = places.clamp(max=len(self._stream) - 1)
        window = self._stream.tokens(places).masked_fill(past_end, 0)
        ends = self._stream.ends(places) & ~past_end
        batch = {
            "tokens": window[:, :-1].contiguous(),
            "labels": window[:, 1:].masked_fill(past_end[:, 1:], IGNORED),
            "ends": ends[:, :-1],
        }
        sizes = self._stream.num_bytes(places[:, 1:])
        return batch if sizes is None else {**batch, "bytes": sizes}
