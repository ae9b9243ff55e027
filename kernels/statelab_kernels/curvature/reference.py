"""The running covariance of the keys one token at a time: the definition.

Sigma_t = Cbar_t - mu_t mu_t',  Cbar_t and mu_t the means of k_j k_j' and k_j over j <= t.
"""

from itertools import pairwise

import torch
from torch import Tensor

from statelab_kernels.chunks import sequence_bounds


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
    dtype = q.dtype
    q, k = q.to(second.dtype), k.to(second.dtype)
    bounds = sequence_bounds(q.shape[0], q.shape[1], cu_seqlens)
    if cu_seqlens is None:
        out, second, first = _sequence(center, q, k, second, first, position)
        return out.to(dtype), second, first
    # Split, not sliced: the gradient of each slice would be as long as the whole.
    lengths = [end - start for start, end in pairwise(bounds)]
    read = [
        _sequence(center, *document)
        for document in zip(
            torch.split(q, lengths, dim=1),
            torch.split(k, lengths, dim=1),
            torch.split(second, 1),
            torch.split(first, 1),
            torch.split(position, 1),
            strict=True,
        )
    ]
    outs, seconds, firsts = zip(*read, strict=True)
    return torch.cat(outs, dim=1).to(dtype), torch.cat(seconds), torch.cat(firsts)


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
    dtype = second.dtype
    bent, second, first = curvature(q.to(dtype), k, center, second, first, position, cu_seqlens)
    clean = q.to(dtype) - lam[..., None].to(dtype) * bent
    return clean.to(q.dtype), second, first


def _sequence(
    center: bool, q: Tensor, k: Tensor, second: Tensor, first: Tensor, position: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Read sequences of one length."""
    outs = [q[:, :0]]
    # Unbound once: the gradient of q[:, t] in a loop would take O(T^2).
    for step, (q_t, k_t) in enumerate(zip(q.unbind(1), k.unbind(1), strict=True)):
        count = (position + step + 1)[:, None, None]
        second = second + k_t[..., None] * k_t[..., None, :]
        first = first + k_t
        out = torch.einsum("bhij,bhj->bhi", second, q_t) / count
        if center:
            mean = first / count
            out = out - mean * (mean * q_t).sum(-1, keepdim=True)
        outs.append(out[:, None])
    return torch.cat(outs, dim=1), second, first
