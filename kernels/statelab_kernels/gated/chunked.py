"""The gated memory in chunks: matrix products inside, a scan between, one segment at a time.

The whole op is one autograd function. It keeps its inputs and the states that enter each segment;
the backward writes each segment again, last first.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statelab_kernels.chunks import ChunkPlan, Segment, plan_chunks
from statelab_kernels.gated import reference
from statelab_kernels.gated.memory import Gradients, Memory
from statelab_kernels.precision import autocast_off, compute_dtype

_CHUNK_SIZE = 64
# Numbers in one tensor of a segment: what the cache holds, or what keeps a device busy.
_SEGMENT_NUMEL = {"cpu": 1 << 18, "accelerator": 1 << 24}


def recall(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the values, o_t = S_t' q_t; arguments as in `gated_recall`."""
    return _read("recall", q, k, v, g, beta, initial_state, cu_seqlens)


def project(
    y: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the addresses, w_t = S_t y_t; arguments as in `gated_project`."""
    return _read("project", y, k, s, g, beta, initial_state, cu_seqlens)


def _read(
    read: Literal["recall", "project"],
    x: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, num_tokens, num_heads, key_dim = k.shape
    if num_tokens == 1 and cu_seqlens is None:
        # Decoding: a single step has nothing to put into chunks.
        step = reference.recall if read == "recall" else reference.project
        return step(x, k, s, g, beta, initial_state, cu_seqlens)
    numel = _SEGMENT_NUMEL["cpu" if k.device.type == "cpu" else "accelerator"]
    chunk_numel = num_heads * _CHUNK_SIZE * max(key_dim, s.shape[-1])
    plan = plan_chunks(
        batch,
        num_tokens,
        cu_seqlens,
        device=k.device,
        chunk_size=_CHUNK_SIZE,
        max_chunks=max(1, numel // chunk_numel),
    )
    if initial_state is None:
        shape = (plan.num_sequences, num_heads, key_dim, s.shape[-1])
        initial_state = k.new_zeros(shape, dtype=compute_dtype(k))
    out: tuple[Tensor, Tensor] = _Read.apply(  # type: ignore[no-untyped-call]
        read, plan, x, k, s, g, beta, initial_state
    )
    return out


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        read: Literal["recall", "project"],
        plan: ChunkPlan,
        x: Tensor,
        k: Tensor,
        s: Tensor,
        g: Tensor | None,
        beta: Tensor | None,
        initial_state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        out = x.new_empty(*x.shape[:3], (s if read == "recall" else k).shape[-1])
        state = plan.sort_states(initial_state.to(compute_dtype(x)))
        entering = []
        with autocast_off(x.device):
            for segment in plan.segments:
                entering.append(state[segment.rows].clone())
                inputs = _Inputs(segment, x, k, s, g, beta)
                memory = inputs.write(state)
                if read == "recall":
                    chunks = memory.recall(memory.query(inputs.x))
                else:
                    chunks = memory.project(inputs.x)
                _unfold(segment, chunks, out)
        ctx.read, ctx.plan, ctx.state_dtype = read, plan, initial_state.dtype
        ctx.save_for_backward(x, k, s, g, beta, *entering)
        return out, plan.unsort_states(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        x, k, s, g, beta, *entering = ctx.saved_tensors
        plan: ChunkPlan = ctx.plan
        d_x, d_k, d_s, d_g, d_beta = (
            None if t is None else t.new_empty(t.shape) for t in (x, k, s, g, beta)
        )
        d_state = plan.sort_states(d_final)
        state = torch.empty_like(d_state)
        with autocast_off(x.device):
            for segment, first in zip(reversed(plan.segments), reversed(entering), strict=True):
                state[segment.rows] = first
                inputs = _Inputs(segment, x, k, s, g, beta)
                memory = inputs.write(state)
                d_read = _fold(segment, d_out, d_state.dtype)
                if ctx.read == "recall":
                    grads = memory.gradients(memory.query(inputs.x), d_read, d_state)
                    _unfold(segment, grads.x, d_x)
                else:
                    query = memory.query(d_read)
                    grads = memory.gradients(query, inputs.x, d_state)
                    _unfold(segment, memory.recall(query), d_x)
                by_key, by_beta = inputs.key_gradients(grads)
                _unfold(segment, by_key, d_k)
                _unfold(segment, by_beta, d_beta)
                _unfold(segment, grads.stream, d_s)
                _unfold(segment, grads.g, d_g)
        d_initial = plan.unsort_states(d_state).to(ctx.state_dtype)
        return None, None, d_x, d_k, d_s, d_g, d_beta, d_initial


class _Inputs:
    """The inputs of one segment, [Z, C, ...] in the format of the state."""

    def __init__(
        self,
        segment: Segment,
        x: Tensor,
        k: Tensor,
        s: Tensor,
        g: Tensor | None,
        beta: Tensor | None,
    ) -> None:
        dtype = compute_dtype(x)
        self.segment = segment
        self.x, self.k, self.s = (_fold(segment, t, dtype) for t in (x, k, s))
        self.g = None if g is None else _fold(segment, g if g.ndim == 4 else g[..., None], dtype)
        self.beta = None if beta is None else _fold(segment, beta[..., None], dtype)

    def write(self, state: Tensor) -> Memory:
        """Write with a = e^g k and b = r = beta k, or with r = k and nothing erased."""
        if self.beta is None:
            return Memory(self.segment, None, self.k, self.s, self.g, state)
        return Memory(self.segment, self.k, self.beta * self.k, self.s, self.g, state)

    def key_gradients(self, grads: Gradients) -> tuple[Tensor, Tensor | None]:
        """The gradients of k and beta, from those of a and r."""
        if self.beta is None or grads.erase is None:
            return grads.add, None
        by_key = torch.addcmul(grads.erase, self.beta, grads.add)
        return by_key, (self.k * grads.add).sum(-1)


def _fold(segment: Segment, x: Tensor, dtype: torch.dtype) -> Tensor:
    return segment.fold(x).flatten(0, 1).to(dtype)


def _unfold(segment: Segment, chunks: Tensor | None, out: Tensor | None) -> None:
    if chunks is not None and out is not None:
        chunks = chunks.reshape(-1, out.shape[2], segment.chunk_size, *out.shape[3:])
        segment.unfold(chunks, out)
