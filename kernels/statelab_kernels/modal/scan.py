"""The scan between chunks: what each chunk finds, and what is left after the last."""

from typing import Any

import torch
from torch import Tensor

from statelab_kernels.chunks import Segment


def scan(segment: Segment, state: Tensor, decay: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """Carry states through a segment: state <- decay * state + written, chunk after chunk.

    Args:
        segment: Says which chunks follow each other.
        state: [H, rows, D, M] the states of the segment's rows.
        decay: [H, P, 1, M] of each whole chunk.
        written: [H, P, D, M] by each chunk.

    Returns:
        The state before each chunk [H, P, D, M], and the states after the segment.
    """
    starts, state = _Scan.apply(segment, state, decay, written)
    return starts, state


class _Scan(torch.autograd.Function):
    # By hand, since autograd would copy all states for each chunk that it writes.

    @staticmethod
    def forward(
        ctx: Any, segment: Segment, state: Tensor, decay: Tensor, written: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = state.clone()
        starts = torch.empty_like(written)
        for rows, chunks in _steps(segment):
            starts[:, chunks] = state[:, rows]
            state[:, rows] = decay[:, chunks] * state[:, rows] + written[:, chunks]
        ctx.segment = segment
        ctx.save_for_backward(decay, starts)
        return starts, state

    @staticmethod
    def backward(
        ctx: Any, d_starts: Tensor, d_state: Tensor
    ) -> tuple[None, Tensor, Tensor, Tensor]:
        decay, starts = ctx.saved_tensors
        d_state = d_state.clone()
        d_written = torch.empty_like(d_starts)
        for rows, chunks in reversed(_steps(ctx.segment)):
            d_written[:, chunks] = d_state[:, rows]
            d_state[:, rows] = decay[:, chunks].conj() * d_state[:, rows] + d_starts[:, chunks]
        d_decay = (starts.conj() * d_written).sum(-2, keepdim=True)
        return None, d_state, d_decay, d_written


def _steps(segment: Segment) -> list[tuple[slice, slice]]:
    """For each wave its rows among those of the segment, and its chunks."""
    first = segment.rows.start
    return [
        (slice(rows.start - first, rows.stop - first), chunks) for rows, chunks in segment.by_wave()
    ]
