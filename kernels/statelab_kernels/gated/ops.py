"""The public ops of the gated family."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from statelab_kernels.backend import Backend, choose, triton_refuses
from statelab_kernels.gated import chunked, reference
from statelab_kernels.shapes import check_shapes


def _fused_recall(*arguments: Any) -> tuple[Tensor, Tensor]:
    # Imported here, since the CPU never needs Triton.
    from statelab_kernels.gated import fused

    return fused.recall(*arguments)


def _fused_project(*arguments: Any) -> tuple[Tensor, Tensor]:
    from statelab_kernels.gated import fused

    return fused.project(*arguments)


_RECALL = {"reference": reference.recall, "chunked": chunked.recall, "fused": _fused_recall}
_PROJECT = {"reference": reference.project, "chunked": chunked.project, "fused": _fused_project}


def gated_recall(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    g: Float[Tensor, "B T H"] | Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"]]:
    """Write v into a gated memory and read it with q.

    S_t = (I - beta_t k_t k_t') diag(exp g_t) S_{t-1} + w_t k_t v_t',    o_t = S_t' q_t,

    where w = beta if there is one, else 1. Without g nothing decays, without beta nothing is
    erased: linear attention, GLA, DeltaNet, Gated DeltaNet and KDA are all cases of it. Nothing
    is scaled or normalised here.

    Args:
        q: Queries.
        k: Keys; of unit length if there is a beta, or the memory may grow without bound.
        v: Values.
        g: Log decay per head or per key channel, natural log, <= 0. -inf is an exact reset.
        beta: Write strength, in (0, 1), or in (0, 2) for negative eigenvalues.
        initial_state: S_0 of each sequence or document; zeros if None.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        The reads in q's format, and the last states: float32, or float64 for float64 inputs.

    Raises:
        ValueError: If shapes, `cu_seqlens` or `backend` don't fit.

    Source: Yang et al. 2023, arXiv:2312.06635 (g per channel); Yang et al. 2024, arXiv:2406.06484
    (beta) and arXiv:2412.06464 (both).
    """
    streams = {"q": (q, "BTHK"), "k": (k, "BTHK"), "v": (v, "BTHV")}
    _check(streams, g, beta, initial_state, cu_seqlens)
    refusals = {"fused": lambda: _fused_refuses(k, q, v, g, beta)}
    recall = choose("gated_recall", backend, _RECALL, q.device, refusals)
    return recall(q, k, v, g, beta, initial_state, cu_seqlens)


def gated_project(
    y: Float[Tensor, "B T H V"],
    k: Float[Tensor, "B T H K"],
    s: Float[Tensor, "B T H V"],
    *,
    g: Float[Tensor, "B T H"] | Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "N H K V"]]:
    """Write the stream s into a gated memory and read its address side with y.

    w_t = S_t y_t, with the S_t of `gated_recall` written with s in the place of v. It is the
    gradient of sum_t o_t . y_t towards q.

    Args:
        y: Value-side queries.
        k: Keys, as in `gated_recall`.
        s: The stream to write, in the place of v.
        g: Log decay, as in `gated_recall`.
        beta: Write strength, as in `gated_recall`.
        initial_state: S_0 of each sequence or document; zeros if None.
        cu_seqlens: [N + 1] bounds of documents packed into a batch of one.
        backend: The form to run; "auto" picks by device.

    Returns:
        The reads in y's format, and the last states: float32, or float64 for float64 inputs.

    Raises:
        ValueError: If shapes, `cu_seqlens` or `backend` don't fit.
    """
    streams = {"y": (y, "BTHV"), "k": (k, "BTHK"), "s": (s, "BTHV")}
    _check(streams, g, beta, initial_state, cu_seqlens)
    refusals = {"fused": lambda: _fused_refuses(k, y, s, g, beta)}
    project = choose("gated_project", backend, _PROJECT, y.device, refusals)
    return project(y, k, s, g, beta, initial_state, cu_seqlens)


def _fused_refuses(
    k: Tensor, x: Tensor, s: Tensor, g: Tensor | None, beta: Tensor | None
) -> str | None:
    if beta is not None:
        return "it takes no beta"
    return triton_refuses(k, g, max_dim=256) or triton_refuses(x, s, max_dim=512)


def _check(
    streams: dict[str, tuple[Tensor, str]],
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    k, _ = streams["k"]
    num_sequences = len(k) if cu_seqlens is None else cu_seqlens.numel() - 1
    others = {
        "g": (g, "BTHK" if g is not None and g.ndim == 4 else "BTH"),
        "beta": (beta, "BTH"),
        "initial_state": (initial_state, "NHKV"),
    }
    check_shapes({**streams, **others}, N=num_sequences)
