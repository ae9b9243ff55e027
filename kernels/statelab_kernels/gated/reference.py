"""The gated memory one token at a time: the definition that every other form is held to.

S_t = (I - beta_t k_t k_t') diag(exp g_t) S_{t-1} + w_t k_t v_t',  w = beta if there is one, else 1.
"""

from itertools import pairwise

import torch
from torch import Tensor

from statelab_kernels.chunks import sequence_bounds
from statelab_kernels.precision import autocast_off, compute_dtype


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
    return _read("bhkv,bhk->bhv", q, k, v, g, beta, initial_state, cu_seqlens)


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
    return _read("bhkv,bhv->bhk", y, k, s, g, beta, initial_state, cu_seqlens)


def _read(
    equation: str,
    x: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, num_tokens, num_heads, key_dim = k.shape
    dtype = compute_dtype(x)
    bounds = sequence_bounds(batch, num_tokens, cu_seqlens)
    if initial_state is None:
        initial_state = k.new_zeros(len(bounds) - 1, num_heads, key_dim, s.shape[-1])
    state = initial_state.to(dtype)
    with autocast_off(x.device):
        if cu_seqlens is None:
            out, state = _sequence(equation, x, k, s, g, beta, state)
            return out.to(x.dtype), state
        # Split, not sliced: the gradient of each slice would be as long as the whole.
        lengths = [end - start for start, end in pairwise(bounds)]
        xs, ks, ss = (t.split_with_sizes(lengths, 1) for t in (x, k, s))
        gs, betas = (
            [None] * len(lengths) if t is None else t.split_with_sizes(lengths, 1)
            for t in (g, beta)
        )
        outs, rows = [], list(state.split_with_sizes([1] * len(lengths)))
        for i, length in enumerate(lengths):
            if length > 0:
                out, rows[i] = _sequence(equation, xs[i], ks[i], ss[i], gs[i], betas[i], rows[i])
                outs.append(out)
    return torch.cat(outs, dim=1).to(x.dtype), torch.cat(rows)


def _sequence(
    equation: str,
    x: Tensor,
    k: Tensor,
    s: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Read sequences of one length."""
    # Unbound once: the gradient of x[:, t] in a loop would take O(T^2).
    xs, ks, ss = (t.to(state.dtype).unbind(1) for t in (x, k, s))
    decays = None
    if g is not None:
        decays = (g if g.ndim == 4 else g[..., None]).to(state.dtype).exp()[..., None].unbind(1)
    betas = None if beta is None else beta.to(state.dtype)[..., None].unbind(1)
    outs = []
    for t in range(len(xs)):
        written = ss[t]
        if decays is not None:
            state = decays[t] * state
        if betas is not None:
            written = betas[t] * (written - torch.einsum("bhkv,bhk->bhv", state, ks[t]))
        state = state + ks[t][..., None] * written[..., None, :]
        outs.append(torch.einsum(equation, state, xs[t]))
    return torch.stack(outs, dim=1), state
