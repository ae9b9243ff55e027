"""Gated KalmaNet's read: a ridge regression whose condition number is bounded by construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statelab.model.memory import Memory, Written
from statelab.model.norms import l2_normalize
from statelab.options import Section, option
from statelab.rules import MixerDims, ParamOptions, ReadRule, read_rules
from statelab_kernels.gated import gated_project
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory
from statelab_plugins.solvers import chebyshev, solve

__all__ = ["GKA", "GKAConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GKAConfig(Section):
    """Options of Gated KalmaNet's read."""

    num_steps: int = option(30, "steps of Chebyshev's iteration", at_least=1)
    ridge: float = option(0.02, "lambda as a part of the norm of H", above=0)


@read_rules.register("gka", config=GKAConfig)
class GKA(ReadRule):
    """Gated KalmaNet's read: o_t = S_t' (q_t + alpha_t (x_t - q_t)), (H_t + lambda_t I) x_t = q_t.

        H_t = exp(g_t) H_(t-1) + w_t k_t k_t',  lambda_t = ridge |H_t|_F,
        alpha_t = sigmoid(a q_t / |q_t| + b), a scalar a token and head

    H has the memory's own decays and weights. No eigenvalue of H is above its Frobenius norm, so
    the condition number is at most 1 + 1 / ridge, 51, and the error of Chebyshev's iteration is
    known beforehand: below 5e-4 after 30 steps. The norm needs a project and a scalar of state:

        |H_t|^2 = exp(2 g_t) |H_(t-1)|^2 + 2 w_t k_t' H_t k_t - w_t^2 |k_t|^4

    Only a symmetric H can be solved so: decays must be scalars, and nothing erased. All is in
    fp32 at least, and the gradient is that of the exact solution.

    Source: Peng et al. 2025, arXiv:2511.21016; with write=gated_kalmanet it is its model. In the
    release alpha is a linear map of the layer's input, which a read rule doesn't see.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"linear", "gated", "symmetric"})
    changes_query: ClassVar[bool] = True
    mixer: ClassVar[Mapping[str, object]] = {"qk_norm": "l2"}

    def __init__(self, config: GKAConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        self.weight = nn.Parameter(torch.empty(dims.num_heads, dims.key_dim))
        self.bias = nn.Parameter(torch.empty(dims.num_heads))

    def reset_parameters(self) -> None:
        """The gate alpha starts at 1/2 for every query."""
        super().reset_parameters()
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on alpha."""
        return dict.fromkeys(("weight", "bias"), ParamOptions(weight_decay=False))

    def forward(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"] | None,
        memory: Memory,
    ) -> Float[Tensor, "B T H V"]:
        """Solve for the address, move the query towards it, and recall."""
        assert isinstance(memory, GatedMemory)
        # Rounded keys would leave H neither symmetric nor positive, and the solution far off.
        memory, wide = memory.widened(), memory.lift(q).to(compute_dtype(q))
        moment = memory.write(memory.address, "keys")
        norm = _norm(memory, moment)
        ridge = self.config.ridge * norm
        again, low, high = moment.aside(), ridge.detach(), (ridge + norm).detach()

        def inverse(b: Tensor) -> Tensor:
            return chebyshev(
                lambda x: again.project(x) + low * x, b, low, high, self.config.num_steps
            )

        solution = solve(lambda x: moment.project(x) + ridge * x, wide, inverse)
        c = torch.lerp(wide, solution, self._alpha(wide)[..., None])
        return memory.recall(c).to(q.dtype)

    def diagnose(
        self, q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"] | None, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The gate alpha between query and solution."""
        return {"alpha": self._alpha(memory.lift(q).to(compute_dtype(q)))}

    def _alpha(self, q: Tensor) -> Tensor:
        """alpha_t of wide queries, [B, T, H]."""
        logit = (l2_normalize(q) * self.weight.to(q.dtype)).sum(-1) + self.bias
        return logit.sigmoid()


def _norm(memory: GatedMemory, moment: Written) -> Tensor:
    """|H_t|_F, [B, T, H, 1]; the state of its square is the slot `norm`."""
    k = moment.stream
    across = (k * moment.project(k)).sum(-1, keepdim=True)
    length = k.square().sum(-1, keepdim=True)
    if memory.weight is not None:
        across, length = across * memory.weight[..., None], length * memory.weight[..., None]
    one = torch.ones_like(length)
    square = memory.run(
        gated_project,
        one,
        2 * across - length.square(),
        one,
        slot="norm",
        g=None if memory.g is None else 2 * memory.g,
    )
    # All keys may have been 0 so far.
    return square.clamp(min=1e-12).sqrt()
