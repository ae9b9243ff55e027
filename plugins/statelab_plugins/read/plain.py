"""The plain read: the query is the address."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from statelab.model.memory import Memory
from statelab.options import Section
from statelab.rules import ReadRule, read_rules

__all__ = ["Plain", "PlainConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainConfig(Section):
    """The plain read has no options."""


@read_rules.register("plain", config=PlainConfig)
class Plain(ReadRule):
    """The plain read: o_t = S_t' lift(q_t).

    On S4D no query is involved: its address is constant.
    """

    def forward(
        self,
        q: Float[Tensor, "B T H K"] | None,
        k: Float[Tensor, "B T H K"] | None,
        memory: Memory,
    ) -> Float[Tensor, "B T H V"]:
        """Recall at the query."""
        return memory.recall(memory.lift(q))
