"""Kernels for the linear reads of a memory; each has a reference and a chunked form."""

from statelab_kernels.backend import Backend

__all__ = ["Backend"]
