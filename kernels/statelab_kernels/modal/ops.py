"""The public ops of the modal family."""

from jaxtyping import Complex, Float, Int
from torch import Tensor

from statelab_kernels.backend import Backend, choose
from statelab_kernels.chunks import sequence_bounds
from statelab_kernels.modal import chunked, reference
from statelab_kernels.precision import autocast_off, compute_dtype
from statelab_kernels.shapes import check_shapes
from statelab_kernels.state import state_parts

_RECALL = {"reference": reference.recall, "chunked": chunked.recall}
_PROJECT = {"reference": reference.project, "chunked": chunked.project}
_INTERDOMAIN = {"reference": reference.interdomain, "chunked": chunked.interdomain}


def modal_recall(
    c: Complex[Tensor, "B T H M"] | Complex[Tensor, "H M"],
    z: Float[Tensor, "B T H D"],
    *,
    log_lambda: Complex[Tensor, "H M"],
    b: Complex[Tensor, "H M"],
    initial_state: Complex[Tensor, "N H M D"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H D"], Complex[Tensor, "N H M D"]]:
    """Read a memory of complex modes towards its values.

        x_t = diag(exp(log_lambda)) x_{t-1} + b z_t',    o_t = Re(x_t' c_t)

    Args:
        c: Queries of the modes: one a token, or one for all tokens, which is a convolution.
        z: The stream that is written.
        log_lambda: dt * A, the log of each mode's transition; real part <= 0.
        b: What each mode takes in.
        initial_state: The state before the first token of each sequence; zeros if None.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        The reads in z's dtype, and the states after the last token of each sequence: complex64, or
        complex128 if z is float64.

    Raises:
        ValueError: If shapes, `cu_seqlens` or `backend` don't fit.

    Source: Gu et al. 2022, arXiv:2206.11893 (S4D), the recurrent form.
    """
    recall = choose("modal_recall", backend, _RECALL, z.device)
    num_sequences = len(sequence_bounds(z.shape[0], z.shape[1], cu_seqlens)) - 1
    check_shapes(
        {
            "z": (z, "BTHD"),
            "c": (c, "HM" if c.ndim == 2 else "BTHM"),
            "log_lambda": (log_lambda, "HM"),
            "b": (b, "HM"),
            "initial_state": (initial_state, "NHMD"),
        },
        N=num_sequences,
    )
    dtype = compute_dtype(z).to_complex()
    state = _entering(initial_state, z, b, num_sequences)
    with autocast_off(z.device):
        return recall(c.to(dtype), z, log_lambda.to(dtype), b.to(dtype), state, cu_seqlens)


def modal_project(
    y: Float[Tensor, "B T H D"],
    z: Float[Tensor, "B T H D"],
    *,
    log_lambda: Complex[Tensor, "H M"],
    b: Complex[Tensor, "H M"],
    initial_state: Complex[Tensor, "N H M D"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Complex[Tensor, "B T H M"], Complex[Tensor, "N H M D"]]:
    """Read a memory of complex modes towards its modes.

        x_t = diag(exp(log_lambda)) x_{t-1} + b z_t',    w_t = x_t y_t

    Args:
        y: Queries of the values.
        z: The stream that is written.
        log_lambda: As in `modal_recall`, and so are all further arguments.
        b: What each mode takes in.
        initial_state: The state before the first token of each sequence; zeros if None.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        The reads and the states after the last token of each sequence, both complex64, or
        complex128 if z is float64.

    Raises:
        ValueError: If shapes, `cu_seqlens` or `backend` don't fit.
    """
    project = choose("modal_project", backend, _PROJECT, z.device)
    num_sequences = len(sequence_bounds(z.shape[0], z.shape[1], cu_seqlens)) - 1
    check_shapes(
        {
            "z": (z, "BTHD"),
            "y": (y, "BTHD"),
            "log_lambda": (log_lambda, "HM"),
            "b": (b, "HM"),
            "initial_state": (initial_state, "NHMD"),
        },
        N=num_sequences,
    )
    dtype = compute_dtype(z).to_complex()
    state = _entering(initial_state, z, b, num_sequences)
    with autocast_off(z.device):
        return project(y, z, log_lambda.to(dtype), b.to(dtype), state, cu_seqlens)


def modal_interdomain(
    y: Float[Tensor, "B T H Ds"],
    s: Float[Tensor, "B T H Ds"],
    v: Float[Tensor, "B T H Dv"],
    *,
    log_lambda: Complex[Tensor, "H M"],
    b: Complex[Tensor, "H M"],
    gram: Complex[Tensor, "H M M"],
    initial_state: dict[str, Tensor] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H Dv"], dict[str, Tensor]]:
    """Read the values by what a read of the features gives: project, gram, recall.

        w_t = U_t y_t,    c_t = gram w_t,    o_t = Re(X_t' c_t)

    where U and X are the memory written with the streams s and v.

    Args:
        y: Queries of the features.
        s: Features, the first stream that is written.
        v: Values, the second.
        log_lambda: As in `modal_recall`.
        b: What each mode takes in.
        gram: C'C of the mixing C of the modes, unconjugated, hence symmetric.
        initial_state: {"features": complex [N, H, M, Ds], "values": complex [N, H, M, Dv]};
            zeros if None.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        The reads in v's dtype, and the states after the last token, a dict like `initial_state`.

    Raises:
        ValueError: If shapes, `initial_state`, `cu_seqlens` or `backend` don't fit.

    Source: arXiv:2605.24330, equations 11 and 13.
    """
    interdomain = choose("modal_interdomain", backend, _INTERDOMAIN, v.device)
    num_sequences = len(sequence_bounds(v.shape[0], v.shape[1], cu_seqlens)) - 1
    features, values = state_parts(initial_state, "features", "values")
    check_shapes(
        {
            "v": (v, "BTHD"),
            "s": (s, "BTHF"),
            "y": (y, "BTHF"),
            "log_lambda": (log_lambda, "HM"),
            "b": (b, "HM"),
            "gram": (gram, "HMM"),
            "initial_state['features']": (features, "NHMF"),
            "initial_state['values']": (values, "NHMD"),
        },
        N=num_sequences,
    )
    dtype = compute_dtype(v).to_complex()
    features = _entering(features, s, b, num_sequences)
    values = _entering(values, v, b, num_sequences)
    memory = (log_lambda.to(dtype), b.to(dtype), gram.to(dtype))
    with autocast_off(v.device):
        o, features, values = interdomain(y, s, v, *memory, features, values, cu_seqlens)
    return o, {"features": features, "values": values}


def _entering(state: Tensor | None, z: Tensor, b: Tensor, num_sequences: int) -> Tensor:
    """The states before the first token, [N, H, M, D], in the format to compute in."""
    dtype = compute_dtype(z).to_complex()
    if state is None:
        return z.new_zeros(num_sequences, *b.shape, z.shape[-1], dtype=dtype)
    return state.to(dtype)
