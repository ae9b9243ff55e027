"""The choice between the forms of one op: reference, chunked, fused."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch

Backend = Literal["auto", "reference", "chunked", "fused"]

Form = TypeVar("Form", bound=Callable[..., Any])

_logger = logging.getLogger("statelab.kernels")


def choose(op: str, backend: str, forms: Mapping[str, Form], device: torch.device) -> Form:
    """Pick the form of `op` that runs, from those that exist.

    "auto" takes the fastest form for the device, whatever the length, and says so once. Any other
    name is taken at its word: it runs or it raises, and never falls back. Each choice is logged at
    the level DEBUG.

    Args:
        op: Name of the op, for messages.
        backend: "auto" or the name of a form.
        forms: The forms that exist, by name.
        device: Where the tensors live.

    Returns:
        The form to call.

    Raises:
        ValueError: If `backend` names no form of this op.
    """
    if backend == "auto":
        preference = ("fused", "chunked") if device.type == "cuda" else ("chunked",)
        name = next(name for name in (*preference, "reference") if name in forms)
        if _may_log(device):
            _announce(op, name, device.type)
            _logger.debug("%s: %s", op, name)
        return forms[name]
    if backend not in forms:
        raise ValueError(
            f"backend={backend!r} does not exist for {op}, which has "
            f"{', '.join(sorted(forms))}. Use one of these or backend='auto'."
        )
    if _may_log(device):
        _logger.debug("%s: %s", op, backend)
    return forms[backend]


def _may_log(device: torch.device) -> bool:
    """A log record would break a compiled graph; on the meta device nothing is computed."""
    return device.type != "meta" and not torch.compiler.is_compiling()


@functools.cache
def _announce(op: str, name: str, device: str) -> None:
    _logger.info("%s on %s runs %s", op, device, name)
