"""Floating-point operations, counted while a model runs, on the meta device too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ProductCounter"]

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm: 0, _aten.bmm: 0, _aten.addmm: 1, _aten.baddbmm: 1}
"""Where the left factor stands among the arguments."""


class ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of all matrix products inside it: 2 m n k of an [m, k] by a [k, n].

    `torch.utils.flop_counter` counts alike, but imports Triton.

    Attributes:
        flops: The count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        left = _PRODUCTS.get(func.overloadpacket)
        if left is not None:
            self.flops += 2 * out.numel() * args[left].shape[-1]
        return out
