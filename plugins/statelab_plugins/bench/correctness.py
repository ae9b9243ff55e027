"""Whether an op's chunked form computes what its loop computes."""

from typing import Any

import torch
from torch import Tensor

from statelab_plugins.bench.agreement import disagreement
from statelab_plugins.bench.cases import Case, Inputs

# Three chunks and a part of a fourth.
_NUM_TOKENS = 200


def error(case: Case, dtype: torch.dtype, device: torch.device) -> float:
    """How far the chunked form is off the loop in float64, which gets the same inputs.

    Compares the output, the last state, and the gradient of each input, that of an initial state
    among them, for a loss that uses the output and the last state.
    """
    inputs = case.inputs(_NUM_TOKENS, dtype, device)
    _, inputs["initial_state"] = case.op(**case.inputs(10, dtype, device), backend="reference")
    exact = {name: _as_leaf(value, double=True) for name, value in inputs.items()}
    inputs = {name: _as_leaf(value, double=False) for name, value in inputs.items()}
    return disagreement(_results(case, inputs, "chunked"), _results(case, exact, "reference"))


def _results(case: Case, inputs: Inputs, backend: str) -> dict[str, Tensor]:
    outputs = case.run(inputs, backend)
    smooth = [out for out in outputs.values() if out.requires_grad]
    generator = torch.Generator().manual_seed(0)
    gradients = [
        torch.randn(out.shape, dtype=torch.complex128, generator=generator) for out in smooth
    ]
    d_smooth = [
        (d_out if out.is_complex() else d_out.real).to(out)
        for d_out, out in zip(gradients, smooth, strict=True)
    ]
    leaves = _leaves(inputs)
    found = torch.autograd.grad(smooth, list(leaves.values()), d_smooth)
    by_name = {f"d_{name}": d_leaf for name, d_leaf in zip(leaves, found, strict=True)}
    return {name: out.detach() for name, out in outputs.items()} | by_name


def _leaves(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors among the inputs that ask for gradients."""
    states = inputs["initial_state"]
    parts = states if isinstance(states, dict) else {"state": states}
    named = {name: value for name, value in inputs.items() if name != "initial_state"}
    named |= {f"initial {name}": part for name, part in parts.items()}
    return {name: value for name, value in named.items() if value.requires_grad}


def _as_leaf(value: Any, *, double: bool) -> Any:
    """A tensor, or each of a state, cut from its graph; numbers of tokens stay integers."""
    if isinstance(value, dict):
        return {name: _as_leaf(part, double=double) for name, part in value.items()}
    leaf = value.detach()
    if not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    if double:
        leaf = leaf.to(torch.complex128 if leaf.is_complex() else torch.float64)
    return leaf.clone().requires_grad_()
