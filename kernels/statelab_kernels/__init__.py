"""Kernels of the memories' linear reads; each has a reference, a chunked and, where it pays, a fused form."""

from statelab_kernels.backend import Backend

__all__ = ["Backend"]
