"""Interdomain attention: the features' own memory says where to read the values'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from statelab.config import MixerConfig
from statelab.errors import RuleError
from statelab.model.memory import Memory
from statelab.options import Section, option
from statelab.rules import ReadRule, WriteRule, read_rules

__all__ = ["FLOOR", "Interdomain", "InterdomainConfig"]

FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class InterdomainConfig(Section):
    """Options of interdomain attention."""

    denominator: bool = option(
        False, "divide by the same read of a stream of ones, as the derivation does"
    )


@read_rules.register("interdomain", config=InterdomainConfig)
class Interdomain(ReadRule):
    """Interdomain attention: o_t = S_t' c_t with c_t = U_t q_t.

    U is the memory written with the features, as S is with the values; on both sides they are
    xi(k), and q is xi(q). xi(x) = SiLU(conv(x)) / |SiLU(conv(x))| is the mixer's own pipeline.

    With `denominator` the output is divided by eta_t' c_t, where eta is the memory written with
    ones. It has no sign of its own, so its absolute value is held at 1e-3 or above.

    Source: arXiv:2605.24330, equations 8 to 13.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"linear", "features"})
    mixer: ClassVar[Mapping[str, object]] = {"activation": "silu", "qk_norm": "l2"}

    @classmethod
    def check(cls, write: type[WriteRule], mixer: MixerConfig, options: InterdomainConfig) -> None:
        """Ask for an output norm where the memory, read twice, grows with the text.

        Raises:
            RuleError: If it grows, and there is none.
        """
        if "bounded" not in write.provides and mixer.output_norm == "none":
            raise RuleError(
                f"model.mixer.output_norm=none: the memory of {write.__name__} may grow with the "
                "number of tokens, and interdomain reads it twice. Use "
                "model.mixer.output_norm=rms, or a write rule that provides 'bounded', since it "
                "decays or erases."
            )

    def forward(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"] | None,
        memory: Memory,
    ) -> Float[Tensor, "B T H V"]:
        """Project the query through the features, and recall the values there."""
        features = memory.write(memory.features, "features")
        if not self.config.denominator:
            return memory.reread(q, features)
        c = features.project(q)
        eta = memory.write(torch.ones_like(memory.values[..., :1]), "eta").recall(c)
        floor = torch.full_like(eta, FLOOR).copysign(eta)
        return memory.recall(c) / torch.where(eta.abs() < FLOOR, floor, eta)
