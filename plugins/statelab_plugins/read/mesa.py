"""MesaNet's read: the query, solved against the second moment of the keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statelab.model.memory import Memory
from statelab.options import Section, option
from statelab.rules import MixerDims, ParamOptions, ReadRule, read_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory
from statelab_plugins.solvers import conjugate_gradients, solve

__all__ = ["Mesa", "MesaConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MesaConfig(Section):
    """Options of MesaNet's read."""

    num_steps: int = option(30, "steps of conjugate gradients", at_least=1)
    lambda_min: float = option(0.25, "floor of Lambda, which starts at 1", above=0, below=1)


@read_rules.register("mesa", config=MesaConfig)
class Mesa(ReadRule):
    """MesaNet's read: o_t = S_t' (H_t + Lambda)^-1 q_t.

        H_t = exp(g_t) H_(t-1) + w_t k_t k_t',  Lambda = softplus(p) + lambda_min, one a channel

    H has the memory's own decays and weights, so that o is what the ridge regression of all values
    so far on their keys predicts at q. The system is solved by conjugate gradients from 0, in
    training and decoding alike, and in fp32 at least; the gradient is that of the exact solution.

    Only a symmetric H can be solved so: decays must be scalars, and nothing erased. The number of
    steps is fixed, and takes a condition number of up to some hundreds; memories that grow go
    beyond that.

    Source: von Oswald et al. 2025, arXiv:2506.05233; with write=mesanet it is its model. The
    release adds 1e-5 to the solver's denominators, where here the floor is relative to the query,
    and in decoding starts from q / (diag H + Lambda).
    """

    requires: ClassVar[frozenset[str]] = frozenset({"linear", "gated", "symmetric"})
    changes_query: ClassVar[bool] = True
    mixer: ClassVar[Mapping[str, object]] = {"qk_norm": "l2"}

    def __init__(self, config: MesaConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        self.p = nn.Parameter(torch.empty(dims.num_heads, dims.key_dim))

    def reset_parameters(self) -> None:
        """Lambda = 1."""
        super().reset_parameters()
        # The inverse of softplus.
        nn.init.constant_(self.p, math.log(math.expm1(1 - self.config.lambda_min)))

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on Lambda."""
        return {"p": ParamOptions(weight_decay=False)}

    def forward(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"] | None,
        memory: Memory,
    ) -> Float[Tensor, "B T H V"]:
        """Solve for the address, then recall."""
        assert isinstance(memory, GatedMemory)
        # Rounded keys would leave H neither symmetric nor positive, and the solution far off.
        memory, wide = memory.widened(), memory.lift(q).to(compute_dtype(q))
        moment = memory.write(memory.address, "keys")
        ridge = self._ridge(wide.dtype)
        again, fixed = moment.aside(), ridge.detach()

        def inverse(b: Tensor) -> Tensor:
            return conjugate_gradients(
                lambda x: again.project(x) + fixed * x, b, self.config.num_steps
            )

        c = solve(lambda x: moment.project(x) + ridge * x, wide, inverse)
        return memory.recall(c).to(q.dtype)

    def diagnose(
        self, q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"] | None, memory: Memory
    ) -> Mapping[str, Tensor]:
        """Lambda, which the second moment of the keys stands against."""
        return {"ridge": self._ridge(compute_dtype(q))}

    def _ridge(self, dtype: torch.dtype) -> Tensor:
        """Lambda, [H, K]."""
        ridge: Tensor = F.softplus(self.p.to(dtype)) + self.config.lambda_min
        return ridge
