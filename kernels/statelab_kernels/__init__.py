"""Kernels for the linear reads of a memory; each has a reference and a chunked form."""

from statelab_kernels.backend import Backend
from statelab_kernels.curvature import ccq_query, curvature
from statelab_kernels.gated import gated_project, gated_recall
from statelab_kernels.modal import modal_interdomain, modal_project, modal_recall

__all__ = [
    "Backend",
    "ccq_query",
    "curvature",
    "gated_project",
    "gated_recall",
    "modal_interdomain",
    "modal_project",
    "modal_recall",
]
