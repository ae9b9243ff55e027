"""The public ops of the modal memory: they check, choose the form, and keep autocast out."""

from jaxtyping import Complex, Float, Int
from torch import Tensor

from statelab_kernels.backend import Backend, choose
from statelab_kernels.chunks import sequence_bounds
from statelab_kernels.modal import chunked, reference
from statelab_kernels.precision import autocast_off, compute_dtype


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
        ValueError: If `initial_state`, `cu_seqlens` or `backend` don't fit.

    Source: Gu et al. 2022, arXiv:2206.11893 (S4D), the recurrent form.
    """
    forms = {"reference": reference.recall, "chunked": chunked.recall}
    form = choose("modal_recall", backend, forms, z.device)
    dtype = compute_dtype(z).to_complex()
    state = _entering("initial_state", initial_state, z, b, cu_seqlens)
    with autocast_off(z.device):
        return form(c.to(dtype), z, log_lambda.to(dtype), b.to(dtype), state, cu_seqlens)


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
        ValueError: As `modal_recall`.
    """
    forms = {"reference": reference.project, "chunked": chunked.project}
    form = choose("modal_project", backend, forms, z.device)
    dtype = compute_dtype(z).to_complex()
    state = _entering("initial_state", initial_state, z, b, cu_seqlens)
    with autocast_off(z.device):
        return form(y, z, log_lambda.to(dtype), b.to(dtype), state, cu_seqlens)


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
        ValueError: As `modal_recall`, and if `initial_state` lacks one of the two.

    Source: arXiv:2605.24330, equations 11 and 13.
    """
    forms = {"reference": reference.interdomain, "chunked": chunked.interdomain}
    form = choose("modal_interdomain", backend, forms, v.device)
    dtype = compute_dtype(v).to_complex()
    initial = {"features": None, "values": None} if initial_state is None else initial_state
    if initial.keys() != {"features", "values"}:
        raise ValueError(
            f"initial_state must hold 'features' and 'values', got {', '.join(sorted(initial))}."
        )
    features = _entering("features", initial["features"], s, b, cu_seqlens)
    values = _entering("values", initial["values"], v, b, cu_seqlens)
    with autocast_off(v.device):
        o, features, values = form(
            y, s, v, log_lambda.to(dtype), b.to(dtype), gram.to(dtype), features, values, cu_seqlens
        )
    return o, {"features": features, "values": values}


def _entering(
    name: str, state: Tensor | None, z: Tensor, b: Tensor, cu_seqlens: Tensor | None
) -> Tensor:
    """The states before the first token, [N, H, M, D], in the format to compute in."""
    num_sequences = len(sequence_bounds(z.shape[0], z.shape[1], cu_seqlens)) - 1
    shape = (num_sequences, *b.shape, z.shape[-1])
    dtype = compute_dtype(z).to_complex()
    if state is None:
        return z.new_zeros(shape, dtype=dtype)
    if state.shape != shape:
        raise ValueError(
            f"{name} must be {list(shape)} (sequences, heads, modes, values), "
            f"got {list(state.shape)}."
        )
    return state.to(dtype)
