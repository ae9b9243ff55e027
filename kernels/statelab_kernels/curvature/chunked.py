"""The running covariance of the keys in chunks; README.md has the derivation."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from statelab_kernels.chunks import Segment
from statelab_kernels.curvature import reference
from statelab_kernels.scan import scan
from statelab_kernels.segmentwise import Body, plan_segments, run_segments


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
    if q.shape[1] == 1 and cu_seqlens is None:
        # A single step has nothing to put into chunks.
        return reference.curvature(q, k, center, second, first, position, cu_seqlens)
    body = partial(_curvature, center=center)
    return _run(body, (q, k), second, first, position, cu_seqlens)


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
    if q.shape[1] == 1 and cu_seqlens is None:
        # A single step has nothing to put into chunks.
        return reference.ccq_query(q, k, lam, center, second, first, position, cu_seqlens)
    body = partial(_ccq_query, center=center)
    return _run(body, (q, k, lam[..., None]), second, first, position, cu_seqlens)


def _run(
    body: Body,
    streams: Sequence[Tensor],
    second: Tensor,
    first: Tensor,
    position: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    q = streams[0]
    # A chunk's own second moment is [K, K].
    width = max(q.shape[-1], q.shape[-1] ** 2 // 64)
    plan = plan_segments(q, width, cu_seqlens)
    seen = position.to(second.dtype)[:, None, None, None]
    states = (second, first.unsqueeze(-2), seen)
    out, (second, first, _) = run_segments(body, plan, streams, states, (), q.dtype)
    return out, second, first.squeeze(-2)


def _curvature(
    segment: Segment,
    streams: Sequence[Tensor],
    states: Sequence[Tensor],
    tables: Sequence[Tensor],
    *,
    center: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    (q, k), (second, first, seen) = (x.contiguous() for x in streams), states
    lengths = seen.new_tensor(segment.lengths)[None, :, None, None]
    before, seen = scan(segment, seen, None, lengths)
    count = before + torch.arange(1, segment.chunk_size + 1, device=q.device)[:, None]
    before, second = scan(segment, second, None, k.mT @ k)
    out = ((q @ k.mT).tril() @ k + q @ before.mT) / count
    before, first = scan(segment, first, None, k.sum(-2, keepdim=True))
    if center:
        mean = (before + k.cumsum(-2)) / count
        out = out - mean * (mean * q).sum(-1, keepdim=True)
    return out, (second, first, seen)


def _ccq_query(
    segment: Segment,
    streams: Sequence[Tensor],
    states: Sequence[Tensor],
    tables: Sequence[Tensor],
    *,
    center: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    q, k, lam = streams
    bent, states = _curvature(segment, (q, k), states, tables, center=center)
    return q - lam * bent, states
