"""The running covariance of the keys in Triton: the sums at each chunk, then all chunks at once.

The backward of the query is the forward with dO in the place of q, for Sigma is symmetric; the
keys' gradient needs sums from the end.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from statelab_kernels.curvature import fused_kernels as kernels
from statelab_kernels.span_scan import scan_spans
from statelab_kernels.tiling import Tiling, tile

# Enough for the walk through time to keep each multiprocessor at work.
_PROGRAMS = 256


def curvature(
    q: Tensor,
    k: Tensor,
    center: bool,
    second: Tensor,
    first: Tensor,
    position: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sigma_t q_t and the sums after it; arguments as in the public `curvature`."""
    # 0 q + Sigma q: the same kernels.
    lam = q.new_full(q.shape[:-1], -1, dtype=torch.float32)
    return _run(0.0, q, k, lam, center, second, first, position, cu_seqlens)


def ccq_query(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    center: bool,
    second: Tensor,
    first: Tensor,
    position: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q_t - lam_t Sigma_t q_t and the sums after it; arguments as in the public `ccq_query`."""
    return _run(1.0, q, k, lam, center, second, first, position, cu_seqlens)


@dataclass(frozen=True, slots=True)
class _Call:
    """What all launches of a call share.

    Attributes:
        tile: How much of K a program takes at once; not less for a smaller K, see `gated`.
        block: How much of K it puts out.
        plain: How often the query itself is in the output: 1, or 0 for the curvature alone.
    """

    tiling: Tiling
    num_heads: int
    key_dim: int
    tile: int
    block: int
    plain: float
    center: bool
    position: Tensor

    @property
    def num_tiles(self) -> int:
        return -(-self.key_dim // self.tile)

    @property
    def num_blocks(self) -> int:
        return -(-self.key_dim // self.block)


def _call(
    plain: float, k: Tensor, center: bool, position: Tensor, cu_seqlens: Tensor | None
) -> _Call:
    H, K = k.shape[-2:]
    size = 64 if k.element_size() == 2 else 32
    programs_per_span = H * (-(-K // size)) ** 2
    tiling = tile(
        k,
        cu_seqlens,
        chunk_size=size,
        programs_per_span=programs_per_span,
        programs=_PROGRAMS,
    )
    block = size if size >= K else 2 * size
    return _Call(tiling, H, K, size, block, plain, center, position)


def _run(
    plain: float,
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    center: bool,
    second: Tensor,
    first: Tensor,
    position: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Plain q - lam Sigma q, and the sums."""
    q, k, lam = q.contiguous(), k.to(q.dtype).contiguous(), lam.contiguous()
    given = (q, k, lam, second, first)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    if q.shape[1] == 1 and cu_seqlens is None and not learns:
        return _step(plain, q, k, lam, center, second, first, position)
    call = _call(plain, k, center, position, cu_seqlens)
    out: tuple[Tensor, Tensor, Tensor] = _Curvature.apply(  # type: ignore[no-untyped-call]
        call, q, k, lam, second, first
    )
    return out


class _Curvature(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        q: Tensor,
        k: Tensor,
        lam: Tensor,
        second: Tensor,
        first: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kept, final = _sums(call, k, k, lam, (second, first))
        out, mean, _ = _correct(call, kept, q, k, lam)
        ctx.call = call
        ctx.save_for_backward(q, k, lam, second, first, mean)
        return out, *final

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_out: Tensor, d_second: Tensor, d_first: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, lam, second, first, mean_q = ctx.saved_tensors
        call: _Call = ctx.call
        d_out = d_out.contiguous()
        kept, _ = _sums(call, k, k, lam, (second, first))
        d_q, mean_d, d_lam = _correct(call, kept, d_out, k, lam, q)
        # In place of the sums, which are as large.
        means = (mean_q, mean_d)
        leaving = (d_second + d_second.mT, d_first)
        kept, (d_second, d_first) = _sums(call, q, d_out, lam, leaving, means, kept)
        d_k = torch.empty_like(k)
        kernels.keys_kernel[len(call.tiling.chunks) * call.num_heads, call.num_blocks](
            q, k, d_out, lam, *means, *kept, call.position, d_k, call.tiling.chunks, call.num_heads,
            K=call.key_dim, CENTER=call.center,
            C=call.tiling.chunk_size, BK=call.tile, BN=call.block, num_stages=2,
        )  # fmt: skip
        assert d_lam is not None
        d_lam = d_lam.sum(0).neg_().to(lam.dtype)
        # As symmetric as the sum itself.
        return None, d_q, d_k, d_lam, d_second.div_(2), d_first


def _sums(
    call: _Call,
    x: Tensor,
    y: Tensor,
    lam: Tensor,
    initial: tuple[Tensor, Tensor],
    means: tuple[Tensor | None, Tensor | None] | None = None,
    kept: tuple[Tensor, Tensor] | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What each chunk finds, and both sums after all; `means` make it backward, from the end."""
    tiling, H, K = call.tiling, call.num_heads, call.key_dim
    num_spans, num_chunks = len(tiling.spans), len(tiling.chunks)
    backward = means is not None
    launch = partial(
        kernels.sums_kernel[num_spans * H, call.num_tiles, call.num_tiles],
        x, y, lam, *(means or (None, None)), call.position, K=K,
        CENTER=call.center, BACKWARD=backward,
        C=tiling.chunk_size, BK=call.tile,
    )  # fmt: skip
    if tiling.is_cut:
        second = x.new_empty(num_spans, H, K, K, dtype=torch.float32)
        first = x.new_empty(num_spans, H, K, dtype=torch.float32)
        launch(second, first, first, None, None, tiling.spans, H, PER_SPAN=True)
        final = (
            scan_spans(tiling, second, initial[0], reverse=backward),
            scan_spans(tiling, first, initial[1], reverse=backward),
        )
        left_first = torch.empty_like(first)
    else:
        second = initial[0].to(torch.float32, copy=True).contiguous()
        first = initial[1].to(torch.float32).contiguous()
        left_first = first.clone()
        final = second, left_first
    if kept is None:
        kept = (
            x.new_empty(num_chunks, H, K, K),
            x.new_empty(num_chunks, H, K, dtype=torch.float32),
        )
    launch(second, first, left_first, *kept, tiling.spans, H, PER_SPAN=tiling.is_cut)
    return kept, final


def _correct(
    call: _Call,
    kept: tuple[Tensor, Tensor],
    x: Tensor,
    k: Tensor,
    lam: Tensor,
    y: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The output for x, mu . x, and y . Sigma x in parts [blocks, B, T, H]."""
    out = torch.empty_like(x)
    mean = x.new_empty(x.shape[:-1], dtype=torch.float32) if call.center else None
    dot_y = None
    if y is not None:
        dot_y = x.new_empty(call.num_blocks, *x.shape[:-1], dtype=torch.float32)
    kernels.correct_kernel[len(call.tiling.chunks) * call.num_heads, call.num_blocks](
        x, k, lam, y, *kept, call.position, out, mean, dot_y, call.tiling.chunks,
        call.plain, call.num_heads, x.numel() // call.key_dim,
        K=call.key_dim, CENTER=call.center,
        C=call.tiling.chunk_size, BK=call.tile, BN=call.block,
    )  # fmt: skip
    return out, mean, dot_y


def _step(
    plain: float,
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    center: bool,
    second: Tensor,
    first: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token a sequence."""
    N, _, H, K = k.shape
    out, new_second, new_first = (
        torch.empty_like(q),
        torch.empty_like(second, memory_format=torch.contiguous_format),
        torch.empty_like(first, memory_format=torch.contiguous_format),
    )
    BK = max(16, triton.next_power_of_2(K))
    BN = min(BK, max(1, 4096 // BK))
    kernels.step_kernel[N * H, triton.cdiv(K, BN)](
        q,
        k,
        lam,
        second.contiguous(),
        first.contiguous(),
        position,
        out,
        new_second,
        new_first,
        plain,
        H,
        K=K,
        CENTER=center,
        BK=BK,
        BN=BN,
        num_warps=4,
    )
    return out, new_second, new_first
