"""The gated memory without a delta in Triton: states at each chunk, then all chunks at once.

Both reads and their gradients are halves of one form, F(x, y) = sum x' S y, and share the kernels.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from statelab_kernels.gated import fused_kernels as kernels
from statelab_kernels.span_scan import scan_spans
from statelab_kernels.tiling import Tiling, tile

# Enough for the walk through time to keep each multiprocessor at work.
_PROGRAMS = 256


def recall(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the values, o_t = S_t' q_t; arguments as in `gated_recall`."""
    return _read(True, q, k, v, g, initial_state, cu_seqlens)


def project(
    y: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    beta: None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the addresses, w_t = S_t y_t; arguments as in `gated_project`."""
    return _read(False, y, k, s, g, initial_state, cu_seqlens)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes that all launches of a call share.

    Attributes:
        decay: 0 for none, 1 per head, 2 per channel.
        tile: How many tokens, how much of K and how much of V a program takes at once. Not less
            for smaller K and V: Triton 3.6 lets products with narrow tiles read past their shared
            memory.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    decay: int
    tile: int

    @property
    def num_key_tiles(self) -> int:
        return -(-self.key_dim // self.tile)

    @property
    def num_value_tiles(self) -> int:
        return -(-self.value_dim // self.tile)

    def options(self) -> dict[str, int]:
        """Keyword arguments of most kernels."""
        return {
            "H": self.num_heads,
            "K": self.key_dim,
            "V": self.value_dim,
            "DECAY": self.decay,
            "C": self.tile,
            "BK": self.tile,
            "BV": self.tile,
        }


def _shape(k: Tensor, s: Tensor, g: Tensor | None) -> _Shape:
    return _Shape(
        num_heads=k.shape[-2],
        key_dim=k.shape[-1],
        value_dim=s.shape[-1],
        decay=0 if g is None else g.ndim - 2,
        tile=64 if k.element_size() == 2 else 32,
    )


def _read(
    is_recall: bool,
    x: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    x, k, s = (t.to(x.dtype).contiguous() for t in (x, k, s))
    g = None if g is None else g.contiguous()
    given = (x, k, s, g, initial_state)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in given if t is not None)
    shape = _shape(k, s, g)
    if x.shape[1] == 1 and cu_seqlens is None and not learns:
        return _step(shape, is_recall, x, k, s, g, initial_state)
    tiling = tile(
        k,
        cu_seqlens,
        chunk_size=shape.tile,
        programs_per_span=shape.num_heads * shape.num_key_tiles * shape.num_value_tiles,
        programs=_PROGRAMS,
    )
    if initial_state is None:
        initial_state = _no_state(shape, tiling.num_sequences, k)
    out: tuple[Tensor, Tensor] = _Read.apply(  # type: ignore[no-untyped-call]
        is_recall, tiling, shape, x, k, s, g, initial_state
    )
    return out


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        is_recall: bool,
        tiling: Tiling,
        shape: _Shape,
        x: Tensor,
        k: Tensor,
        s: Tensor,
        g: Tensor | None,
        initial: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weak = _weak(tiling, shape, k, g)
        before, final = _states(tiling, shape, k, s, g, weak, initial)
        if is_recall:
            scores = _scores(tiling, shape, x, k, g, weak)
            out = _values(tiling, shape, x, s, g, scores, before, weak)
        else:
            out = x.new_empty(k.shape)
            scores = _scores(tiling, shape, x, s, g)
            _over_chunks(
                kernels.project_kernel, tiling, shape, shape.num_key_tiles,
                x, k, g, scores, before, weak, out,
            )  # fmt: skip
        ctx.is_recall, ctx.tiling, ctx.shape = is_recall, tiling, shape
        ctx.save_for_backward(x, k, s, g, weak, initial)
        return out, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        x, k, s, g, weak, initial = ctx.saved_tensors
        tiling, shape = ctx.tiling, ctx.shape
        d_out = d_out.contiguous()
        q, y = (x, d_out) if ctx.is_recall else (d_out, x)
        before, _ = _states(tiling, shape, k, s, g, weak, initial)
        after, d_initial = _states(tiling, shape, q, y, g, weak, d_final, reverse=True)
        scores = _scores(tiling, shape, q, k, g, weak)
        d_s = _values(tiling, shape, k, y, g, scores, after, weak, reverse=True)
        d_x = None if ctx.is_recall else _values(tiling, shape, q, s, g, scores, before, weak)
        d_q, d_k = torch.empty_like(q), torch.empty_like(k)
        d_g = None
        if g is not None:
            parts = (shape.num_key_tiles,) if g.ndim == 3 else ()
            d_g = g.new_empty(*parts, *g.shape, dtype=torch.float32 if parts else g.dtype)
        _over_chunks(
            kernels.keys_kernel, tiling, shape, shape.num_key_tiles,
            q, k, s, y, g, _scores(tiling, shape, y, s, g), before, after, weak,
            d_q, d_k, d_g, num_rows=k.numel() // shape.key_dim,
        )  # fmt: skip
        if g is not None and d_g is not None and g.ndim == 3:
            d_g = d_g.sum(0).to(g.dtype)
        d_x = d_q if d_x is None else d_x
        return None, None, None, d_x, d_k, d_s, d_g, d_initial.to(initial.dtype)


def _no_state(shape: _Shape, num_sequences: int, like: Tensor) -> Tensor:
    sizes = (num_sequences, shape.num_heads, shape.key_dim, shape.value_dim)
    return like.new_zeros(sizes, dtype=torch.float32)


def _weak(tiling: Tiling, shape: _Shape, k: Tensor, g: Tensor | None) -> Tensor | None:
    """[P, H, blocks] which blocks of a chunk have their reference in its middle."""
    if shape.decay != 2:
        return None
    num_chunks, H, blocks = len(tiling.chunks), shape.num_heads, shape.num_key_tiles
    weak = k.new_empty(num_chunks, H, blocks, dtype=torch.int32)
    kernels.weak_kernel[num_chunks * H, blocks](
        g, weak, tiling.chunks, H, K=shape.key_dim, C=shape.tile, BK=shape.tile
    )
    return weak


def _states(
    tiling: Tiling,
    shape: _Shape,
    x: Tensor,
    s: Tensor,
    g: Tensor | None,
    weak: Tensor | None,
    initial: Tensor,
    *,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The state that each chunk finds, scaled to its reference, and what is left after all.

    In reverse, their gradients, from the end.
    """
    num_spans, num_chunks = len(tiling.spans), len(tiling.chunks)
    H, K, V = shape.num_heads, shape.key_dim, shape.value_dim
    launch = functools.partial(
        kernels.states_kernel[num_spans * H, shape.num_key_tiles, shape.num_value_tiles],
        x, s, g, spans=tiling.spans, REVERSE=reverse, **shape.options(),
    )  # fmt: skip
    if tiling.is_cut:
        state = x.new_empty(num_spans, H, K, V, dtype=torch.float32)
        decay = None if g is None else x.new_empty(num_spans, H, K, dtype=torch.float32)
        launch(state=state, kept=None, weak=None, decay=decay, PER_SPAN=True)
        final = scan_spans(tiling, state, initial, decay, reverse=reverse)
    else:
        state = final = initial.to(torch.float32, copy=True).contiguous()
    kept = x.new_empty(num_chunks, H, K, V)
    launch(state=state, kept=kept, weak=weak, decay=None, PER_SPAN=tiling.is_cut)
    return kept, final


def _scores(
    tiling: Tiling,
    shape: _Shape,
    q: Tensor,
    k: Tensor,
    g: Tensor | None,
    weak: Tensor | None = None,
) -> Tensor:
    """[P, H, C, C] of rows with keys, with their decay; of values, without `weak`."""
    C = shape.tile
    scores = q.new_empty(len(tiling.chunks), shape.num_heads, C, C)
    decay = 0 if weak is None and shape.decay == 2 else shape.decay
    kernels.scores_kernel[(len(tiling.chunks) * shape.num_heads,)](
        q, k, g, weak, scores, tiling.chunks, shape.num_heads,
        K=q.shape[-1], DECAY=decay, C=C, BK=C,
    )  # fmt: skip
    return scores


def _values(
    tiling: Tiling,
    shape: _Shape,
    x: Tensor,
    s: Tensor,
    g: Tensor | None,
    scores: Tensor,
    states: Tensor,
    weak: Tensor | None,
    *,
    reverse: bool = False,
) -> Tensor:
    """The reads of the values; in reverse, the values' gradients."""
    out = torch.empty_like(s)
    _over_chunks(
        kernels.values_kernel, tiling, shape, shape.num_value_tiles,
        x, s, g, scores, states, weak, out, REVERSE=reverse,
    )  # fmt: skip
    return out


def _over_chunks(
    kernel: Any,
    tiling: Tiling,
    shape: _Shape,
    num_tiles: int,
    *tensors: Tensor | None,
    **options: int,
) -> None:
    """Launch a program for each chunk, head and tile of the output."""
    kernel[len(tiling.chunks) * shape.num_heads, num_tiles](
        *tensors, tiling.chunks, **shape.options(), **options
    )


def _step(
    shape: _Shape,
    is_recall: bool,
    x: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One token a sequence."""
    N, H, K, V = len(k), shape.num_heads, shape.key_dim, shape.value_dim
    state = _no_state(shape, N, k) if state is None else state.to(torch.float32).contiguous()
    new_state = torch.empty_like(state)
    out = x.new_empty(N, 1, H, V if is_recall else K)
    BK, BV = (max(16, triton.next_power_of_2(n)) for n in (K, V))
    # A program's part of the state: whole columns to recall, whole rows to project.
    if is_recall:
        BV = min(BV, max(16, 4096 // BK))
        kernel, blocks = kernels.recall_step_kernel, triton.cdiv(V, BV)
    else:
        BK = min(BK, max(1, 4096 // BV))
        kernel, blocks = kernels.project_step_kernel, triton.cdiv(K, BK)
    kernel[N * H, blocks](
        x, k, s, g, state, new_state, out,
        K=K, V=V, DECAY=shape.decay, BK=BK, BV=BV, num_warps=4,
    )  # fmt: skip
    return out, new_state
