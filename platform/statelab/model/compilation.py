"""torch.compile, a block at a time, in training.

What stands between the operations on a memory is compiled: maps, norms, gates, the MLP. The
operations themselves stay outside. A graph would unroll their loops over chunks, and so grow with
the text; their plans are made on the host, of documents that are others in each batch; and on a
GPU they are kernels already. All blocks of a kind share their graphs.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor

from statelab.model.context import Context
from statelab.model.decoder import Block, Decoder

__all__ = ["compile_blocks"]


def compile_blocks(model: Decoder, backend: str = "inductor") -> None:
    """Compile the blocks of a model; what it is made of, its keys too, stays as it is.

    Args:
        model: The model.
        backend: torch.compile's.
    """
    for message in (
        # Torch looks at every input of a graph, and warns of what it does itself.
        "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        # The few complex products of S4D run as they would without it.
        "Torchinductor does not support code generation for complex operators",
    ):
        warnings.filterwarnings("ignore", message=message)
    compiled = torch.compile(Block.__call__, backend=backend)

    def run(block: Block, x: Tensor, context: Context) -> Tensor:
        outside = copy.copy(context)
        outside.__class__ = _Outside
        y: Tensor = compiled(block, x, outside)
        return y

    model.run_block = run


class _Outside(Context):
    """A context whose operations no graph takes in."""

    run = torch.compiler.disable(Context.run)  # type: ignore[no-untyped-call]
    final = torch.compiler.disable(Context.final)  # type: ignore[no-untyped-call]
