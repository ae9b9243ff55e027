"""The public ops on the running covariance of the keys."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from statelab_kernels.backend import Backend, choose, triton_refuses
from statelab_kernels.chunks import sequence_bounds
from statelab_kernels.curvature import chunked, reference
from statelab_kernels.precision import autocast_off, compute_dtype
from statelab_kernels.shapes import check_shapes
from statelab_kernels.state import state_parts

_MAX_FUSED_DIM = 256


def _fused_curvature(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    # Imported here, since the CPU never needs Triton.
    from statelab_kernels.curvature import fused

    return fused.curvature(*arguments)


def _fused_ccq_query(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    from statelab_kernels.curvature import fused

    return fused.ccq_query(*arguments)


_CURVATURE = {
    "reference": reference.curvature,
    "chunked": chunked.curvature,
    "fused": _fused_curvature,
}
_CCQ_QUERY = {
    "reference": reference.ccq_query,
    "chunked": chunked.ccq_query,
    "fused": _fused_ccq_query,
}


def curvature(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    *,
    center: bool = True,
    initial_state: dict[str, Tensor] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H K"], dict[str, Tensor]]:
    """Apply the running covariance of the keys to each query.

    Sigma_t = (1/t) sum_j k_j k_j' - mu_t mu_t',    mu_t = (1/t) sum_j k_j,    over all j <= t:

    the population form, the current token included, and nothing decays. Nothing is scaled or
    normalised here.

    Args:
        q: Queries.
        k: Keys; of unit length, all eigenvalues of Sigma are between 0 and 1.
        center: Whether mu mu' is subtracted.
        initial_state: What each sequence has seen: {"second": [N, H, K, K] the sum of k k',
            "first": [N, H, K] the sum of k, "position": [N] int64 number of tokens}; nothing if
            None.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        Sigma_t q_t in q's format, and what has been seen by then, a dict like `initial_state`, its
        sums in float32, or float64 for float64 inputs.

    Raises:
        ValueError: If shapes, `initial_state`, `cu_seqlens` or `backend` don't fit.

    Source: arXiv:2606.01294, equations 7 and 8.
    """
    refusals = {"fused": lambda: triton_refuses(k, q, max_dim=_MAX_FUSED_DIM)}
    form = choose("curvature", backend, _CURVATURE, q.device, refusals)
    check_shapes({"k": (k, "BTHK"), "q": (q, "BTHK")})
    second, first, position, lengths = _entering(initial_state, k, cu_seqlens)
    with autocast_off(q.device):
        out, second, first = form(q, k, center, second, first, position, cu_seqlens)
    return out, {"second": second, "first": first, "position": position + lengths}


def ccq_query(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    lam: Float[Tensor, "B T H"],
    *,
    center: bool = True,
    initial_state: dict[str, Tensor] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H K"], dict[str, Tensor]]:
    """Take out of each query what it shares with the directions that the keys crowd.

    q_t - lam_t Sigma_t q_t, with the Sigma_t of `curvature`. Where lam is 0, this is q to the bit.

    Args:
        q: Queries.
        k: Keys, as in `curvature`.
        lam: How much is taken out, in [0, 1].
        center: As in `curvature`.
        initial_state: As in `curvature`.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        The queries in q's format, and the state, as `curvature`.

    Raises:
        ValueError: If shapes, `initial_state`, `cu_seqlens` or `backend` don't fit.

    Source: arXiv:2606.01294, equation 9.
    """
    refusals = {"fused": lambda: triton_refuses(k, q, lam, max_dim=_MAX_FUSED_DIM)}
    form = choose("ccq_query", backend, _CCQ_QUERY, q.device, refusals)
    check_shapes({"k": (k, "BTHK"), "q": (q, "BTHK"), "lam": (lam, "BTH")})
    second, first, position, lengths = _entering(initial_state, k, cu_seqlens)
    with autocast_off(q.device):
        out, second, first = form(q, k, lam, center, second, first, position, cu_seqlens)
    return out, {"second": second, "first": first, "position": position + lengths}


def _entering(
    state: dict[str, Tensor] | None, k: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The three parts of the state before the first token, and each sequence's length."""
    batch, num_tokens, num_heads, key_dim = k.shape
    sequence_bounds(batch, num_tokens, cu_seqlens)
    if cu_seqlens is None:
        # Made there, since a copy would wait for the device.
        lengths = torch.full((batch,), num_tokens, device=k.device)
    else:
        lengths = cu_seqlens.to(k.device, torch.int64).diff()
    N, dtype = len(lengths), compute_dtype(k)
    second, first, position = state_parts(state, "second", "first", "position")
    if second is None or first is None or position is None:
        second = k.new_zeros(N, num_heads, key_dim, key_dim, dtype=dtype)
        first = k.new_zeros(N, num_heads, key_dim, dtype=dtype)
        return second, first, torch.zeros_like(lengths), lengths
    check_shapes(
        {
            "initial_state['second']": (second, "NHKK"),
            "initial_state['first']": (first, "NHK"),
            "initial_state['position']": (position, "N"),
        },
        N=N,
        H=num_heads,
        K=key_dim,
    )
    return second.to(dtype), first.to(dtype), position, lengths
