"""The choice between the forms of one op: reference, chunked, fused."""

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

Backend = Literal["auto", "reference", "chunked", "fused"]

Form = TypeVar("Form", bound=Callable[..., Any])
# Why a form can't run on what it is given; None if it can.
Refusals = Mapping[str, Callable[[], str | None]]

_logger = logging.getLogger("statelab.kernels")


def choose(
    op: str,
    backend: str,
    forms: Mapping[str, Form],
    device: torch.device,
    refusals: Refusals | None = None,
) -> Form:
    """Pick the form of `op` that runs, from those that exist.

    "auto" takes the fastest form for the device that doesn't refuse, whatever the length, and says
    so once. Any other name is taken at its word: it runs or it raises, and never falls back. Each
    choice is logged at the level DEBUG.

    Args:
        op: Name of the op, for messages.
        backend: "auto" or the name of a form.
        forms: The forms that exist, by name.
        device: Where the tensors live.
        refusals: For forms that can't run everything.

    Returns:
        The form to call.

    Raises:
        ValueError: If `backend` names no form of this op, or one that refuses.
    """
    refusals = refusals or {}
    if backend == "auto":
        preference = ("fused", "chunked") if device.type == "cuda" else ("chunked",)
        reasons = []
        for name in (*preference, "reference"):
            if name not in forms:
                continue
            reason = refusals[name]() if name in refusals else None
            if reason is None:
                break
            reasons.append(f"; not {name}: {reason}")
        if _may_log(device):
            _announce(op, name, device.type, "".join(reasons))
            _logger.debug("%s: %s", op, name)
        return forms[name]
    if backend not in forms:
        raise ValueError(
            f"backend={backend!r} does not exist for {op}, which has "
            f"{', '.join(sorted(forms))}. Use one of these or backend='auto'."
        )
    reason = refusals[backend]() if backend in refusals else None
    if reason is not None:
        raise ValueError(
            f"backend={backend!r} can't run this {op}: {reason}. Use backend='auto' or 'chunked'."
        )
    if _may_log(device):
        _logger.debug("%s: %s", op, backend)
    return forms[backend]


def triton_refuses(*tensors: Tensor | None, max_dim: int) -> str | None:
    """Why kernels in Triton can't run on these tensors; the first is the keys.

    Args:
        tensors: Streams, of which those that matter have one format and one device.
        max_dim: The largest last axis that fits a multiprocessor.
    """
    given = [x for x in tensors if x is not None]
    if given[0].device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it needs a CUDA device, got {given[0].device.type}"
    for x in given:
        if x.dtype not in (torch.float32, torch.bfloat16):
            return f"it takes float32 and bfloat16, got {str(x.dtype).removeprefix('torch.')}"
        if x.ndim == 4 and x.shape[-1] > max_dim:
            return f"it takes up to {max_dim} channels, got {x.shape[-1]}"
    return None


def _may_log(device: torch.device) -> bool:
    """A log record would break a compiled graph; on the meta device nothing is computed."""
    return device.type != "meta" and not torch.compiler.is_compiling()


@functools.cache
def _announce(op: str, name: str, device: str, reasons: str) -> None:
    _logger.info("%s on %s runs %s%s", op, device, name, reasons)
