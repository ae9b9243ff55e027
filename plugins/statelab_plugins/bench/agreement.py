"""Whether two ways to compute the same agree: asked before anything is timed."""

from collections.abc import Mapping

import torch
from torch import Tensor

#: Those of the tests: largest error relative to the largest number of a tensor.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def disagreement(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> float:
    """The largest error relative to the largest number of its tensor; NaN if there is one."""
    # Of a stack, since `max` of Python passes over NaN.
    return float(torch.stack([_off(got[name], want[name]) for name in want]).max())


def agrees(errors: Mapping[torch.dtype, float]) -> bool:
    """Whether the error in each format is below what is allowed there."""
    # Asked this way round, since a NaN is never less.
    return all(error < TOLERANCE[dtype] for dtype, error in errors.items())


def _off(got: Tensor, want: Tensor) -> Tensor:
    if got.shape != want.shape:
        return torch.tensor(torch.inf, dtype=torch.float64)
    # The floor is for what is exactly 0.
    scale = want.abs().max().clamp_min(1e-3)
    error = (got.to(want.dtype) - want).abs().max() / scale
    return error.double().cpu()
