"""The scan between chunks: what each chunk finds, and what is left after the last."""

from typing import Any

import torch
from torch import Tensor

from statelab_kernels.chunks import Segment


def scan(
    segment: Segment, state: Tensor, decay: Tensor | None, written: Tensor
) -> tuple[Tensor, Tensor]:
    """Carry states through a segment: state <- decay * state + written, chunk after chunk.

    Args:
        segment: Says which chunks follow each other.
        state: [rows, H, X, Y] the states of the segment's rows.
        decay: [H, P, 1, Y] of each chunk as a whole; None keeps everything.
        written: [H, P, X, Y] by each chunk.

    Returns:
        The state before each chunk [H, P, X, Y], and the states after the segment.
    """
    out: tuple[Tensor, Tensor] = _Scan.apply(  # type: ignore[no-untyped-call]
        segment, state, decay, written
    )
    return out


class _Scan(torch.autograd.Function):
    # By hand, since autograd would copy all states for each wave that it writes.

    @staticmethod
    def forward(
        ctx: Any, segment: Segment, state: Tensor, decay: Tensor | None, written: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = state.transpose(0, 1).clone()
        starts = torch.empty_like(written)
        for rows, chunks in _steps(segment):
            starts[:, chunks] = state[:, rows]
            state[:, rows] = _decayed(starts, decay, chunks) + written[:, chunks]
        ctx.segment = segment
        ctx.save_for_backward(decay, None if decay is None else starts)
        return starts, state.transpose(0, 1)

    @staticmethod
    def backward(
        ctx: Any, d_starts: Tensor, d_state: Tensor
    ) -> tuple[None, Tensor, Tensor | None, Tensor]:
        decay, starts = ctx.saved_tensors
        conjugate = None if decay is None else decay.conj_physical()
        d_state = d_state.transpose(0, 1).clone()
        d_written = torch.empty_like(d_starts)
        for rows, chunks in reversed(_steps(ctx.segment)):
            d_written[:, chunks] = d_state[:, rows]
            d_state[:, rows] = _decayed(d_written, conjugate, chunks) + d_starts[:, chunks]
        d_decay = None if decay is None else (starts.conj() * d_written).sum(-2, keepdim=True)
        return None, d_state.transpose(0, 1), d_decay, d_written


def _decayed(states: Tensor, decay: Tensor | None, chunks: slice) -> Tensor:
    return states[:, chunks] if decay is None else decay[:, chunks] * states[:, chunks]


def _steps(segment: Segment) -> list[tuple[slice, slice]]:
    """For each wave its rows among those of the segment, and its chunks."""
    first = segment.rows.start
    return [
        (slice(rows.start - first, rows.stop - first), chunks) for rows, chunks in segment.by_wave()
    ]
