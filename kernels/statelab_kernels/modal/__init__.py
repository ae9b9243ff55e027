"""The modal family of memories; README.md has the derivation."""

from statelab_kernels.modal.ops import modal_interdomain, modal_project, modal_recall

__all__ = ["modal_interdomain", "modal_project", "modal_recall"]
