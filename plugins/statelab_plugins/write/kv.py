"""The key-value cache: the append-only memory of softmax attention, the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from statelab.options import Section
from statelab.rules import ReadRule, WriteRule, write_rules
from statelab_plugins.memory import CacheMemory

__all__ = ["KV", "KVConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVConfig(Section):
    """The cache has no options; how much of it is kept is the reader's."""


@write_rules.register("kv", config=KVConfig)
class KV(WriteRule):
    """Key-value cache: every token's key and value, kept as they are.

    The one memory that grows: softmax attention's, the baseline.

    Source: Vaswani et al. 2017, arXiv:1706.03762; rotary positions: arXiv:2104.09864.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"cache"})

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """Rotary positions, on keys before they are cached."""
        return {"rope_base": 10_000.0}

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> CacheMemory:
        """Keep every token."""
        return CacheMemory(k, v)
