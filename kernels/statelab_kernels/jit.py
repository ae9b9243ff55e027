"""Triton's compiler, which looks names up where a function was written."""

import inspect
from collections.abc import Callable
from typing import Any

import triton


def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel, without the type checks that an import hook has put around it."""
    return triton.jit(inspect.unwrap(function))
