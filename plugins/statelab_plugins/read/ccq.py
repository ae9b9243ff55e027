"""Curvature-corrected queries: turn a query away from the directions that all keys share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statelab.config import MixerConfig
from statelab.errors import RuleError
from statelab.model.memory import Memory
from statelab.model.norms import l2_normalize
from statelab.options import Section, option
from statelab.rules import MixerDims, ParamOptions, ReadRule, WriteRule, read_rules
from statelab_kernels.curvature import ccq_query, curvature
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory

__all__ = ["CCQ", "CCQConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CCQConfig(Section):
    """Options of curvature-corrected queries."""

    gate: Literal["per_token", "per_head", "fixed"] = option(
        "per_token", "what lambda depends on: the query, a learned number a head, or nothing"
    )
    lambda_init: float = option(0.1, "the gate's value at the start", above=0, below=1)
    lambda_scale: float = option(
        1.0, "lambda is this times the gate; up to 1 the correction only shrinks", at_least=0
    )
    center: bool = option(True, "take the covariance; false takes the second moment")
    statistics: Literal["cumulative", "decayed", "written"] = option(
        "cumulative",
        "which keys count: all alike, as they fade in the memory, or by their write weight",
    )
    order: int = option(
        1, "powers of Sigma in the series of (1 + lambda Sigma)^-1", at_least=1, at_most=2
    )
    normalize_query: bool = option(False, "read with q / |q|, as the paper does")


@read_rules.register("ccq", config=CCQConfig)
class CCQ(ReadRule):
    """Curvature-corrected query: o_t = S_t' lift(q_t - lambda_t Sigma_t q_t).

    Sigma_t is a covariance of the unit keys k_j so far, the current one included,

        Sigma_t = sum_j n_tj k_j k_j' / n_t - mu_t mu_t',  mu_t = sum_j n_tj k_j / n_t,
        n_t = sum_j n_tj,

    and lambda_t = lambda_scale * sigmoid(w q_t / |q_t| + b), a scalar a token and head. `center`
    off leaves mu out; order=2 adds lambda^2 Sigma (Sigma q). The counts n_tj are, by `statistics`,

        cumulative  1
        written     w_j |k_j|: the weight and length that key j was written with (w is beta in a
                    delta rule); equal to cumulative if these are all alike
        decayed     the same, times what the memory's decay has left of it, which may differ by
                    channel; a delta rule's erasure acts on the sums, as on all that is written,
                    and not on n_t. Equal to written where nothing decays and nothing is erased

    The last two are sums inside a memory of the gated family itself, and need one.

    Source: arXiv:2606.01294, equations 7 to 10 and algorithm 1; all options but the defaults and
    `normalize_query` are ablations that it lacks.
    """

    changes_query: ClassVar[bool] = True

    def __init__(self, config: CCQConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        if config.gate == "per_token":
            self.weight = nn.Parameter(torch.empty(dims.num_heads, dims.key_dim))
        if config.gate != "fixed":
            self.bias = nn.Parameter(torch.empty(dims.num_heads))

    @classmethod
    def check(cls, write: type[WriteRule], mixer: MixerConfig, options: CCQConfig) -> None:
        """Refuse statistics that the memory doesn't hold.

        Raises:
            RuleError: If the memory isn't addressed by its keys, and the statistics are its own.
        """
        if options.statistics != "cumulative" and "gated" not in write.provides:
            raise RuleError(
                f"model.read.statistics={options.statistics} is a sum inside a memory that is "
                f"addressed by its keys, and that of {write.__name__} isn't. "
                "Use model.read.statistics=cumulative."
            )

    def reset_parameters(self) -> None:
        """The gate starts at lambda_init for every query."""
        super().reset_parameters()
        if self.config.gate == "per_token":
            nn.init.zeros_(self.weight)
        if self.config.gate != "fixed":
            start = self.config.lambda_init
            nn.init.constant_(self.bias, math.log(start / (1 - start)))

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """No weight decay on the gate."""
        return {name: ParamOptions(weight_decay=False) for name, _ in self.named_parameters()}

    def forward(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"] | None,
        memory: Memory,
    ) -> Float[Tensor, "B T H V"]:
        """Correct the query, then recall."""
        if self.config.normalize_query:
            q = l2_normalize(q)
        return memory.recall(memory.lift(self._correct(q, memory)))

    def diagnose(
        self, q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"] | None, memory: Memory
    ) -> Mapping[str, Tensor]:
        """Lambda, the removed share |q - c| / |q|, and norm and trace of Sigma at the end."""
        clean, lam = self._correct(q, memory), self._lambda(q)
        sigma = self._covariance(memory)
        return {
            "lambda": lam,
            "removed": (q - clean).norm(dim=-1) / q.norm(dim=-1).clamp(min=1e-6),
            "sigma_max": torch.linalg.matrix_norm(sigma, ord=2).mean(),
            "sigma_trace": sigma.diagonal(dim1=-2, dim2=-1).sum(-1).mean(),
        }

    def _covariance(self, memory: Memory) -> Tensor:
        """Sigma after the last token, [B, H, K, K], of the sums that a read has left."""
        names = ("curvature.second", "curvature.first", "mass")
        second, first, mass = (memory.state(name) for name in names)
        assert second is not None
        if mass is None:  # cumulative
            mass = second.new_tensor(memory.key.shape[1])
        mass = mass.clamp(min=1e-6)
        second = second / mass
        if not self.config.center:
            return second
        assert first is not None
        mean = first.reshape(*second.shape[:3], 1) / mass
        return second - mean * mean.mT

    def _correct(self, q: Tensor, memory: Memory) -> Tensor:
        config, lam, key = self.config, self._lambda(q), l2_normalize(memory.key)
        if config.statistics == "cumulative" and config.order == 1:
            return memory.run(ccq_query, q, key, lam, slot="curvature", center=config.center)
        sigma = self._sigma(key, memory)
        clean = q
        for _ in range(config.order):
            # Horner's rule: q - lambda Sigma (q - lambda Sigma q).
            clean = (q - lam[..., None] * sigma(clean)).to(q.dtype)
        return clean

    def _sigma(self, key: Tensor, memory: Memory) -> Callable[[Tensor], Tensor]:
        """Sigma_t, as a map of queries."""
        statistics, center = self.config.statistics, self.config.center
        if statistics == "cumulative":
            return lambda q: memory.run(curvature, q, key, slot="curvature", center=center)
        assert isinstance(memory, GatedMemory)
        if statistics == "written":
            memory = memory.undecayed()
        if memory.address.shape != key.shape:
            raise RuleError(
                f"model.read.statistics={statistics} needs addresses of the keys' size, got "
                f"{memory.address.shape[-1]} for {key.shape[-1]}: a feature map stands between. "
                "Use model.write.feature_map=none or model.read.statistics=cumulative."
            )
        # All keys may have been 0 so far.
        mass = memory.mass().clamp(min=1e-6)
        second = memory.write(key, "curvature.second")
        if not center:
            return lambda q: second.project(q) / mass
        one = torch.ones_like(key[..., :1])
        mean = memory.write(one, "curvature.first").project(one) / mass
        return lambda q: second.project(q) / mass - mean * (mean * q).sum(-1, keepdim=True)

    def _lambda(self, q: Tensor) -> Tensor:
        """lambda_t, [B, T, H], in at least fp32."""
        config, dtype = self.config, compute_dtype(q)
        if config.gate == "fixed":
            gate = torch.full(q.shape[:3], config.lambda_init, dtype=dtype, device=q.device)
        else:
            logit = self.bias.to(dtype).expand(q.shape[:3])
            if config.gate == "per_token":
                logit = logit + (l2_normalize(q).to(dtype) * self.weight.to(dtype)).sum(-1)
            gate = logit.sigmoid()
        scaled: Tensor = config.lambda_scale * gate
        return scaled
