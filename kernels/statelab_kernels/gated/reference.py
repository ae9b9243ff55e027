"""The gated memory one token at a time: the definition that every other form is held to.

S_t = (I - beta_t k_t k_t') diag(exp g_t) S_{t-1} + w_t k_t v_t',  w = beta if there is one, else 1.
"""

from collections.abc import Sequence
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
    streams = [None if stream is None else stream.to(dtype) for stream in (x, k, s, g, beta)]
    with autocast_off(x.device):
        if cu_seqlens is None:
            out, state = _sequence(equation, streams, state)
            return out.to(x.dtype), state
        # Split, not sliced: the gradient of each slice would be as long as the whole.
        lengths = [end - start for start, end in pairwise(bounds)]
        documents = zip(
            *([None] * len(lengths) if t is None else t.split(lengths, dim=1) for t in streams),
            strict=True,
        )
        read = [
            _sequence(equation, document, row)
            for document, row in zip(documents, state.split(1), strict=True)
        ]
    outs, states = zip(*read, strict=True)
    return torch.cat(outs, dim=1).to(x.dtype), torch.cat(states)


def _sequence(
    equation: str, streams: Sequence[Tensor | None], state: Tensor
) -> tuple[Tensor, Tensor]:
    """Read sequences of one length; streams are x, k, s, g, beta, each [B, T, H, ...] or None."""
    x, k, s, g, beta = streams
    assert x is not None and k is not None and s is not None
    if x.shape[1] == 0:
        return x.new_empty(
            *x.shape[:3], s.shape[-1] if equation.endswith("v") else k.shape[-1]
        ), state
    none = [None] * x.shape[1]
    decays = none if g is None else (g if g.ndim == 4 else g[..., None]).exp().unbind(1)
    betas = none if beta is None else beta[..., None].unbind(1)
    outs = []
    # Unbound once: the gradient of x[:, t] in a loop would take O(T^2).
    for x_t, k_t, s_t, decay, b in zip(
        x.unbind(1), k.unbind(1), s.unbind(1), decays, betas, strict=True
    ):
        if decay is not None:
            state = decay[..., None] * state
        if b is not None:
            s_t = b * (s_t - torch.einsum("bhkv,bhk->bhv", state, k_t))
        state = state + k_t[..., None] * s_t[..., None, :]
        outs.append(torch.einsum(equation, state, x_t))
    return torch.stack(outs, dim=1), state
