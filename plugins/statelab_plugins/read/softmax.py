"""Softmax attention, all of it or a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from statelab.model.memory import Memory
from statelab.options import Section, option
from statelab.rules import ReadRule, read_rules
from statelab_plugins.memory import CacheMemory

__all__ = ["Softmax", "SoftmaxConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxConfig(Section):
    """Options of softmax attention."""

    window: int | None = option(
        None, "tokens that a query sees, its own counted; null is all", at_least=1
    )


@read_rules.register("softmax", config=SoftmaxConfig)
class Softmax(ReadRule):
    """Softmax attention: o_t = sum_j softmax_j(q_t . k_j) v_j over the last `window` tokens.

    The mixer scales q. The state holds window - 1 tokens, or all.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"cache"})

    def forward(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"] | None,
        memory: Memory,
    ) -> Float[Tensor, "B T H V"]:
        """Attend to the cache."""
        assert isinstance(memory, CacheMemory)
        return memory.attend(q, self.config.window)
