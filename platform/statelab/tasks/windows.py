"""The loss at every position of a stream's windows, in one pass or with the state carried."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from statelab.model.context import State
from statelab.model.decoder import Decoder

__all__ = ["position_losses"]

#: Logits that are held at once, so that a long window needs no more memory than its layers do.
_LOGITS = 2**25


@torch.inference_mode()
def position_losses(
    model: Decoder,
    stream: Tensor,
    length: int,
    *,
    chunk: int | None = None,
    batch_tokens: int = 16_384,
    advance: Callable[[int], object] = lambda tokens: None,
) -> Tensor:
    """Cross-entropy by position, over windows of a stream that don't overlap.

    A window has L tokens x_0 .. x_(L-1), seen alone: position t = 1 .. L - 1 is predicted from
    x_0 .. x_(t-1). What is left at the stream's end is dropped.

    Args:
        model: The model, in evaluation mode.
        stream: [n] int64, n >= L.
        length: L, >= 2.
        chunk: Tokens a pass, between which the state is carried; None is the whole window. With a
            memory of a fixed size, what a chunk needs is all that a window does.
        batch_tokens: Windows are read side by side, up to so many tokens, at least one.
        advance: Told how many tokens were read, again and again.

    Returns:
        [windows, L - 1], nats, on the CPU, in at least fp32.
    """
    windows = stream[: len(stream) // length * length].view(-1, length)
    device = model.embedding.weight.device
    rows = []
    for batch in torch.split(windows, max(1, batch_tokens // length)):
        tokens = batch.to(device)
        state: State | None = None
        parts = []
        for start in range(0, length - 1, chunk or length):
            end = min(start + (chunk or length), length - 1)
            hidden, state = model.hidden(tokens[:, start:end], state)
            parts.append(_losses(model, hidden, tokens[:, start + 1 : end + 1]))
            advance(len(tokens) * (end - start))
        advance(len(tokens))
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows)


def _losses(model: Decoder, hidden: Tensor, labels: Tensor) -> Tensor:
    """[B, T] on the CPU: the head sees a part of the positions at a time."""
    vocabulary = model.embedding.num_embeddings
    flat, wanted = hidden.flatten(0, 1), labels.flatten()
    parts = []
    for h, label in zip(
        *(torch.split(each, max(1, _LOGITS // vocabulary)) for each in (flat, wanted)), strict=True
    ):
        logits = model.head(h)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        parts.append(F.cross_entropy(wide, label, reduction="none"))
    return torch.cat(parts).view_as(labels).cpu()
