"""The benchmark of the kernels: `statelab bench kernels`."""

from statelab_kernels.bench.kernels import OPTIONS, run

__all__ = ["OPTIONS", "run"]
