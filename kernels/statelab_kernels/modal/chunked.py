"""The modal memory in chunks, by real matrix products; README.md has the derivation.

In this file a state is [..., D, M], so that seen as real numbers [..., D, 2M] it enters a matrix
product as it is. Recall works on the conjugate memory (conjugate parameters and states), since
Re(x' c) = sum_m Re c_m Re x_m - Im c_m Im x_m is the plain inner product of c and conj(x).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from statelab_kernels.chunks import ChunkPlan, Segment
from statelab_kernels.modal import reference
from statelab_kernels.modal.lags import by_lag, by_token
from statelab_kernels.scan import scan
from statelab_kernels.segmentwise import plan_segments, run_segments


def recall(
    c: Tensor,
    z: Tensor,
    log_lambda: Tensor,
    b: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the values, o_t = Re(x_t' c_t); arguments as in `modal_recall`."""
    if z.shape[1] == 1 and cu_seqlens is None:
        # A single step has nothing to put into chunks.
        return reference.recall(c, z, log_lambda, b, initial_state, cu_seqlens)
    plan = plan_segments(z, 2 * b.shape[-1], cu_seqlens)
    tables = _tables(plan, log_lambda.conj(), b.conj())
    state = initial_state.mT.conj_physical()
    if c.ndim == 2:
        o, (state,) = run_segments(_filter, plan, (z,), (state,), (*tables, _real(c)), z.dtype)
    else:
        o, (state,) = run_segments(_recall, plan, (_real(c), z), (state,), tables, z.dtype)
    return o, state.mT.conj_physical()


def project(
    y: Tensor,
    z: Tensor,
    log_lambda: Tensor,
    b: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read towards the modes, w_t = x_t y_t; arguments as in `modal_project`."""
    if z.shape[1] == 1 and cu_seqlens is None:
        # A single step has nothing to put into chunks.
        return reference.project(y, z, log_lambda, b, initial_state, cu_seqlens)
    plan = plan_segments(z, 2 * b.shape[-1], cu_seqlens)
    tables = _tables(plan, log_lambda, b)
    dtype = initial_state.real.dtype
    w, (state,) = run_segments(_project, plan, (y, z), (initial_state.mT,), tables, dtype)
    return _complex(w), state.mT.contiguous()


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
    if v.shape[1] == 1 and cu_seqlens is None:
        # A single step has nothing to put into chunks.
        return reference.interdomain(
            y, s, v, log_lambda, b, gram, initial_features, initial_values, cu_seqlens
        )
    plan = plan_segments(v, 2 * b.shape[-1], cu_seqlens)
    tables = _tables(plan, log_lambda, b)
    states = (initial_features.mT, initial_values.mT.conj_physical())
    o, (features, values) = run_segments(
        _interdomain, plan, (y, s, v), states, (*tables, gram.mT.resolve_conj()), v.dtype
    )
    return o, features.mT.contiguous(), values.mT.conj_physical()


def _recall(
    segment: Segment, streams: Sequence[Tensor], states: Sequence[Tensor], tables: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    (c, z), (state,), (powers, response) = streams, states, tables
    values = z.mT.contiguous()
    starts, state = _write(segment, values, state, powers, response)
    near = by_token((c.flatten(1, 2) @ _real(response).mT).view(*c.shape[:3], -1))
    far = _real(_complex(c) * powers[:, None, 1:].conj())
    return near @ values.mT + far @ starts.mT, (state,)


def _filter(
    segment: Segment, streams: Sequence[Tensor], states: Sequence[Tensor], tables: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    """Recall with one c [H, 2M] for all tokens: near and far are the same in every chunk."""
    (z,), (state,), (powers, response, c) = streams, states, tables
    values = z.mT.contiguous()
    starts, state = _write(segment, values, state, powers, response)
    size = values.shape[-1]
    near = by_token((c[:, None] @ _real(response).mT).expand(-1, size, -1))
    far = _real(_complex(c)[:, None] * powers[:, 1:].conj())
    o = values.flatten(1, 2) @ near.mT + starts.flatten(1, 2) @ far.mT
    return o.view(values.shape).mT, (state,)


def _project(
    segment: Segment, streams: Sequence[Tensor], states: Sequence[Tensor], tables: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    (y, z), (state,), (powers, response) = streams, states, tables
    values = z.mT.contiguous()
    starts, state = _write(segment, values, state, powers, response)
    near = (by_lag(y @ values).flatten(1, 2) @ _real(response)).view(*y.shape[:3], -1)
    far = _complex(y @ starts) * powers[:, None, 1:]
    return near + _real(far), (state,)


def _interdomain(
    segment: Segment, streams: Sequence[Tensor], states: Sequence[Tensor], tables: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    (y, s, v), (features, values), (powers, response, gram) = streams, states, tables
    w, (features,) = _project(segment, (y, s), (features,), (powers, response))
    c = _real(_complex(w).flatten(1, 2) @ gram).view(w.shape)
    conjugate = (powers.conj_physical(), response.conj_physical())
    o, (values,) = _recall(segment, (c, v), (values,), conjugate)
    return o, (features, values)


def _write(
    segment: Segment, values: Tensor, state: Tensor, powers: Tensor, response: Tensor
) -> tuple[Tensor, Tensor]:
    """Write values [H, P, D, C]; returns each chunk's first state [H, P, D, 2M], and the last."""
    lengths = torch.tensor(segment.lengths, device=values.device)
    last = values
    if segment.places is not None:
        # A partial chunk ends with its last token: move its empty places to the front.
        size = values.shape[-1]
        index = (torch.arange(size, device=values.device) + lengths[:, None]) % size
        last = values.take_along_dim(index[None, :, None], dim=-1)
    written = _complex((last.flatten(1, 2) @ _real(response)).view(*values.shape[:3], -1))
    decay = powers[:, lengths].unsqueeze(-2)
    starts, state = scan(segment, state, decay, written)
    return _real(starts), state


def _tables(plan: ChunkPlan, log_lambda: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Lambda^n for n = 0..C, and what token j leaves at the chunk's end, b Lambda^(C-1-j)."""
    size = plan.chunk_size
    # In double precision, since Im(log_lambda) n may be thousands of radians.
    lags = torch.arange(size + 1, dtype=torch.float64, device=b.device)
    powers = (log_lambda.to(torch.complex128)[:, None] * lags[:, None]).exp()
    response = b[:, None] * powers[:, :size].flip(1)
    return powers.to(b.dtype), response.to(b.dtype)


def _real(x: Tensor) -> Tensor:
    """Complex [..., M] as real [..., 2M]."""
    return torch.view_as_real(x).flatten(-2)


def _complex(x: Tensor) -> Tensor:
    """Real [..., 2M] as complex [..., M]."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
