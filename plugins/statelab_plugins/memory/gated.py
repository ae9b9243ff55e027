"""The gated family: the address is the key, and what is stored decays, is erased, or stays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from statelab.errors import RuleError
from statelab.model.memory import Memory, Written
from statelab_kernels.gated import gated_project, gated_recall
from statelab_kernels.precision import compute_dtype

__all__ = ["GatedMemory"]


class GatedMemory(Memory):
    """S_t = (I - beta_t a_t a_t') diag(exp g_t) S_(t-1) + w_t a_t s_t', where s is any stream.

    The address a is the key, or what a feature map makes of it (`address`, before any weight).

    Args:
        k: Keys, [B, T, H, K].
        v: Values, [B, T, H, V].
        g: Log decay, natural log, <= 0: a scalar a head [B, T, H], or one a channel of the address
            [B, T, H, M]. None keeps everything.
        beta: Strength of a delta rule, [B, T, H], which erases what the address held before; then
            w = beta. None erases nothing.
        weight: w without a delta rule, [B, T, H]: a step size, an input gate. None is 1.
        address: a, [B, T, H, M]; None is the key.
        query_map: The feature map that brings a query to the address side; None leaves it.

    Raises:
        RuleError: If both `beta` and `weight` are given.

    Source: the family of Yang et al., arXiv:2406.06484 and arXiv:2412.06464.
    """

    def __init__(
        self,
        k: Float[Tensor, "B T H K"],
        v: Float[Tensor, "B T H V"],
        *,
        g: Float[Tensor, "B T H"] | Float[Tensor, "B T H M"] | None = None,
        beta: Float[Tensor, "B T H"] | None = None,
        weight: Float[Tensor, "B T H"] | None = None,
        address: Float[Tensor, "B T H M"] | None = None,
        query_map: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(k, v)
        if beta is not None and weight is not None:
            raise RuleError(
                "GatedMemory takes beta or weight, got both: a delta rule writes with beta. "
                "Multiply the two, or leave one out."
            )
        self.g = g
        self.beta = beta
        self.address = k if address is None else address
        self._query_map = query_map
        self.weight = weight if beta is None else beta
        self._key = self._write_key()

    def lift(self, q: Tensor | None) -> Tensor:
        """Bring a query to the address side, through the feature map if there is one."""
        q = super().lift(q)
        return q if self._query_map is None else self._query_map(q)

    def recall_stream(self, written: Written, c: Tensor) -> Tensor:
        """o_t = S_t' c_t, [B, T, H, Vs]."""
        return self._run(gated_recall, c, written)

    def project_stream(self, written: Written, y: Tensor) -> Tensor:
        """w_t = S_t y_t, [B, T, H, M]."""
        return self._run(gated_project, y, written)

    def undecayed(self) -> GatedMemory:
        """A memory of the same keys and write weights that forgets nothing, in the same pass."""
        memory = GatedMemory(self.key, self.values, weight=self.weight)
        return memory if self._context is None else memory.bind(self._context)

    def widened(self) -> GatedMemory:
        """The same memory with all that it writes in at least fp32, in the same pass."""
        memory, dtype = copy.copy(self), compute_dtype(self.address)
        memory._written = {}
        memory.values, memory.address = self.values.to(dtype), self.address.to(dtype)
        memory._key = memory._write_key()
        return memory

    def mass(self) -> Tensor:
        """n_t = exp(g_t) n_(t-1) + w_t |a_t|, [B, T, H, 1], or [B, T, H, M] if g is a channel's.

        How much has been written, in unit addresses, and has not faded; a delta rule's erasure
        takes nothing from it. The state is the slot `mass`.
        """
        dtype = compute_dtype(self.address)
        norm = torch.linalg.vector_norm(self.address, dim=-1, keepdim=True, dtype=dtype)
        written = norm if self.weight is None else norm * self.weight[..., None]
        if self.g is not None and self.g.ndim == norm.ndim:
            written = written.expand_as(self.g)
        one = torch.ones_like(norm)
        return self.run(gated_project, one, written, one, slot="mass", g=self.g)

    def diagnose(self) -> Mapping[str, Tensor]:
        """The decay exp(g), and the write's strength: beta of a delta rule, else its weight."""
        decay = {} if self.g is None else {"decay": self.g.exp()}
        if self.weight is None:
            return decay
        return {**decay, "weight" if self.beta is None else "beta": self.weight}

    def _write_key(self) -> Tensor:
        # The op gives a delta rule its w; any other is on the key.
        if self.beta is not None or self.weight is None:
            return self.address
        return (self.address * self.weight[..., None]).to(self.address.dtype)

    def _run(self, op: Callable[..., tuple[Tensor, Tensor]], x: Tensor, written: Written) -> Tensor:
        return self.run(
            op, x, self._key, written.stream, slot=written.slot, g=self.g, beta=self.beta
        )
