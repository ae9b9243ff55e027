"""The running covariance of the keys; README.md has the derivation."""

from statelab_kernels.curvature.ops import ccq_query, curvature

__all__ = ["ccq_query", "curvature"]
