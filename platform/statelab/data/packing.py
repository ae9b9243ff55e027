"""Packing: a batch as one row of documents, none of which sees another.

A packed batch has `tokens` and `labels` [1, B T], and the boundaries of its documents `cu_seqlens`,
[N + 1] int64 from 0 to B T. All else stays as it was, so that `slice` still counts rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statelab.data.module import IGNORED, Batch

__all__ = ["pack", "sequences"]


def pack(batch: Batch) -> Batch:
    """Put the rows of a batch one after the other, and part them into documents.

    A document ends where the batch's `ends` says so, and predicts nothing there. The end of a row
    cuts one, too: its last token still predicts the next, which another row begins with.
    """
    packed = dict(batch)
    tokens, labels = packed.pop("tokens"), packed.pop("labels")
    ends = packed.pop("ends", torch.zeros_like(tokens, dtype=torch.bool))
    labels = labels.masked_fill(ends, IGNORED)
    last = torch.arange(tokens.shape[1]) == tokens.shape[1] - 1
    bounds = (ends | last).flatten().nonzero().flatten() + 1
    return {
        "tokens": tokens.reshape(1, -1),
        "labels": labels.reshape(1, -1),
        "cu_seqlens": F.pad(bounds, (1, 0)),
        **packed,
    }


def sequences(batch: Batch, most: int) -> Tensor:
    """A few sequences of a batch to look at, [n, T'] with n <= `most`.

    Of a packed batch the beginnings of its longest documents, cut to one length: as many of them
    as give the most tokens.
    """
    if "cu_seqlens" not in batch:
        return batch["tokens"][:most]
    bounds = batch["cu_seqlens"]
    lengths, order = bounds.diff().sort(descending=True, stable=True)
    lengths = lengths[:most]
    n = int((lengths * torch.arange(1, len(lengths) + 1, device=lengths.device)).argmax()) + 1
    places = torch.arange(int(lengths[n - 1]), device=bounds.device)
    return batch["tokens"][0, bounds[order[:n], None] + places]
