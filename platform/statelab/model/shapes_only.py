"""Keep torch's compiler out of a command that only asks for shapes."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["without_compiler"]


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Run shape functions without importing `torch._dynamo`.

    Torch's shape functions for the meta device import its compiler when they first run, only to
    tell it to leave them alone; that takes longer than the import of torch itself. Inside this
    context a stand-in answers. It stays in the functions it has marked, so this is for a process
    that compiles nothing afterwards: a command that prints and ends.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    stand_in = types.ModuleType("torch._dynamo")
    stand_in.disable = _leave_alone  # type: ignore[attr-defined]
    sys.modules["torch._dynamo"] = stand_in
    torch._dynamo = stand_in
    try:
        yield
    finally:
        del sys.modules["torch._dynamo"], torch._dynamo


def _leave_alone(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return function
