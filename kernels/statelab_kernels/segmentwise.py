"""Run an op a segment at a time, so that what autograd keeps doesn't grow with the length.

The forward keeps the states that enter each segment, and nothing from inside. The backward goes
through the segments in reverse, runs each of them again with gradients on, and hands the gradient
of the entering states on to the segment before.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statelab_kernels.chunks import ChunkPlan, Segment, plan_chunks
from statelab_kernels.precision import autocast_off, compute_dtype

# From a segment, its streams [H, P, C, X], the states [rows, H, ...] that enter it and the tables
# to its output [H, P, C, X] and the states after it, in operations that autograd can follow.
Body = Callable[
    [Segment, Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]
]


# Numbers in the widest tensor of a segment: enough to keep matrix products busy, and few states.
_SEGMENT_NUMEL = 1 << 19


def plan_segments(x: Tensor, width: int, cu_seqlens: Tensor | None) -> ChunkPlan:
    """Plan segments for x [B, T, H, X] and an op that makes `width` numbers per token and head."""
    batch, num_tokens, num_heads, _ = x.shape
    max_chunks = max(1, _SEGMENT_NUMEL // (64 * num_heads * width))
    return plan_chunks(batch, num_tokens, cu_seqlens, device=x.device, max_chunks=max_chunks)


def run_segments(
    body: Body,
    plan: ChunkPlan,
    streams: Sequence[Tensor],
    states: Sequence[Tensor],
    tables: Sequence[Tensor],
    out_dtype: torch.dtype,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Fold the streams, run `body` over the segments of a plan, and carry the states.

    Args:
        body: One segment of the op, in plain torch.
        plan: The cuts.
        streams: Real tensors [B, T, H, X], of any float format.
        states: [N, H, ...] what enters each sequence, in the format to compute in.
        tables: What every segment shares.
        out_dtype: Format of the output.

    Returns:
        The output [B, T, H, X], and the states [N, H, ...] after each sequence.
    """
    entering = [plan.sort_states(state) for state in states]
    out, *leaving = _Segments.apply(  # type: ignore[no-untyped-call]
        body, plan, out_dtype, (len(streams), len(states)), *streams, *entering, *tables
    )
    return out, tuple(plan.unsort_states(state) for state in leaving)


class _Segments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        body: Body,
        plan: ChunkPlan,
        out_dtype: torch.dtype,
        counts: tuple[int, int],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        streams, entering, tables = _groups(tensors, counts)
        states = [state.clone() for state in entering]
        kept: list[Tensor] = []
        out = None
        for segment in plan.segments:
            rows = segment.rows
            inside = [state[rows].clone() for state in states]
            kept += inside
            folded = [_fold(segment, x, states[0]) for x in streams]
            chunks, after = body(segment, folded, inside, tables)
            if out is None:
                out = chunks.new_empty(*streams[0].shape[:3], chunks.shape[-1], dtype=out_dtype)
            segment.unfold(chunks.transpose(0, 1), out)
            for state, new in zip(states, after, strict=True):
                state[rows] = new
        assert out is not None
        ctx.body, ctx.plan, ctx.counts = body, plan, counts
        ctx.save_for_backward(*streams, *kept, *tables)
        return out, *states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, *d_leaving: Tensor) -> tuple[Tensor | None, ...]:
        segments, (num_streams, num_states) = ctx.plan.segments, ctx.counts
        streams, kept, tables = _groups(
            ctx.saved_tensors, (num_streams, num_states * len(segments))
        )
        need_streams, _, need_tables = _groups(ctx.needs_input_grad[4:], ctx.counts)
        d_streams = [
            x.new_empty(x.shape) if need else None
            for x, need in zip(streams, need_streams, strict=True)
        ]
        d_states = [d_state.clone() for d_state in d_leaving]
        d_tables = [
            torch.zeros_like(x) if need else None
            for x, need in zip(tables, need_tables, strict=True)
        ]
        needed = [*need_streams, *[True] * num_states, *need_tables]
        for segment in reversed(segments):
            rows = segment.rows
            inside = kept[len(kept) - num_states :]
            kept = kept[: len(kept) - num_states]
            folded = [_fold(segment, x, d_states[0]) for x in streams]
            leaves = [
                x.detach().requires_grad_(need)
                for x, need in zip((*folded, *inside, *tables), needed, strict=True)
            ]
            # The caller of backward may stand under autocast, which would run this in bf16.
            with torch.enable_grad(), autocast_off(d_out.device):
                chunks, after = ctx.body(segment, *_groups(leaves, ctx.counts))
                found = iter(
                    torch.autograd.grad(
                        (chunks, *after),
                        [leaf for leaf in leaves if leaf.requires_grad],
                        (_fold(segment, d_out, chunks), *[d_state[rows] for d_state in d_states]),
                    )
                )
            for d_stream in d_streams:
                if d_stream is not None:
                    segment.unfold(next(found).transpose(0, 1), d_stream)
            for d_state in d_states:
                d_state[rows] = next(found)
            for d_table in d_tables:
                if d_table is not None:
                    d_table += next(found)
        return None, None, None, None, *d_streams, *d_states, *d_tables


def _groups(items: Sequence[Any], counts: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Streams, states and the rest, out of one flat sequence."""
    streams, states = counts
    return items[:streams], items[streams : streams + states], items[streams + states :]


def _fold(segment: Segment, x: Tensor, like: Tensor) -> Tensor:
    """Fold x [B, T, H, X] to [H, P, C, X], heads first: all chunks of a head share its tables."""
    # As if one wide head, which fold need not transpose.
    chunks = segment.fold(x.flatten(2).unsqueeze(2)).squeeze(1)
    heads = chunks.view(*chunks.shape[:2], *x.shape[2:]).permute(2, 0, 1, 3)
    return heads.to(compute_dtype(like))
