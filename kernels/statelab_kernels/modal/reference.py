"""The modal memory one token at a time: the definition that every other form is held to.

x_t = diag(exp(log_lambda)) x_{t-1} + b z_t'
"""

from itertools import pairwise

import torch
from torch import Tensor

from statelab_kernels.chunks import sequence_bounds


def recall(
    c: Tensor,
    z: Tensor,
    log_lambda: Tensor,
    b: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the values, o_t = Re(x_t' c_t); arguments as in `modal_recall`."""
    queries = c.expand(*z.shape[:3], c.shape[-1])
    o, state = _read("bhmd,bthm->bthd", queries, z, log_lambda, b, initial_state, cu_seqlens)
    return o.real.to(z.dtype), state


def project(
    y: Tensor,
    z: Tensor,
    log_lambda: Tensor,
    b: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the modes, w_t = x_t y_t; arguments as in `modal_project`."""
    return _read("bhmd,bthd->bthm", y, z, log_lambda, b, initial_state, cu_seqlens)


def interdomain(
    y: Tensor,
    s: Tensor,
    v: Tensor,
    log_lambda: Tensor,
    b: Tensor,
    gram: Tensor,
    initial_features: Tensor,
    initial_values: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Project on s, apply gram, recall on v; arguments as in `modal_interdomain`."""
    w, features = project(y, s, log_lambda, b, initial_features, cu_seqlens)
    c = torch.einsum("hmn,bthn->bthm", gram, w)
    o, values = recall(c, v, log_lambda, b, initial_values, cu_seqlens)
    return o, features, values


def _read(
    equation: str,
    x: Tensor,
    z: Tensor,
    log_lambda: Tensor,
    b: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    bounds = sequence_bounds(z.shape[0], z.shape[1], cu_seqlens)
    x, z = x.to(initial_state.dtype), z.to(initial_state.dtype)
    if cu_seqlens is None:
        return _sequence(equation, x, z, initial_state, log_lambda, b)
    # Split, not sliced: the gradient of each slice would be as long as the whole.
    lengths = [end - start for start, end in pairwise(bounds)]
    read = [
        _sequence(equation, *document, log_lambda, b)
        for document in zip(
            torch.split(x, lengths, dim=1),
            torch.split(z, lengths, dim=1),
            torch.split(initial_state, 1),
            strict=True,
        )
    ]
    outs, states = zip(*read, strict=True)
    return torch.cat(outs, dim=1), torch.cat(states)


def _sequence(
    equation: str, x: Tensor, z: Tensor, state: Tensor, log_lambda: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Read sequences of one length."""
    decay, write = log_lambda.exp()[..., None], b[..., None]
    outs = [torch.einsum(equation, state, x[:, :0])]
    # Unbound once: the gradient of x[:, t] in a loop would take O(T^2).
    for x_t, z_t in zip(x.unbind(1), z.unbind(1), strict=True):
        state = decay * state + write * z_t[..., None, :]
        outs.append(torch.einsum(equation, state, x_t[:, None]))
    return torch.cat(outs, dim=1), state
