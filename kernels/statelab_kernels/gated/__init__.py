"""The gated family of memories; README.md has the derivation."""

from statelab_kernels.gated.ops import gated_project, gated_recall

__all__ = ["gated_project", "gated_recall"]
