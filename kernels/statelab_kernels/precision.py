"""The number formats that ops compute in, whatever autocast says."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """Real format of states and sums: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


def autocast_off(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast, which would turn products of fp32 states into bf16."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
