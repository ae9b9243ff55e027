"""The modal family: the address is a basis of decaying oscillations in time, not the key."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from statelab.model.memory import Memory, Written
from statelab_kernels.modal import modal_interdomain, modal_project, modal_recall

__all__ = ["ModalMemory"]


class ModalMemory(Memory):
    """X_t = Lambda X_(t-1) + b s_t', where s is any stream, seen as C X_t.

    All heads have M modes of their own, complex and constant in time. project returns C X y, and
    recall takes a c in that basis: o = Re(c' C X). Together only G = C'C matters.

    Args:
        key: Keys for a read rule's statistics, [B, T, H, K].
        values: What is read by default, [B, T, H, V].
        features: The stream of keys that a read through features writes, [B, T, H, K].
        log_lambda: Logarithm of Lambda, a token, [H, M].
        b: Input map, the same for every channel of a stream, [H, M].
        mixing: C, [H, M, M].
        readout: c0, the constant address that is read where no query says else, [H, M]; None if
            the memory is read through features alone.
        query_map: W of c = c0 + W q, [H, K, M]; None reads c0 whatever the query.

    Source: arXiv:2605.24330, section 3.3; Gu et al. 2022, arXiv:2206.11893, for the modes.
    """

    def __init__(
        self,
        key: Float[Tensor, "B T H K"],
        values: Float[Tensor, "B T H V"],
        features: Float[Tensor, "B T H K"],
        *,
        log_lambda: Complex[Tensor, "H M"],
        b: Complex[Tensor, "H M"],
        mixing: Complex[Tensor, "H M M"],
        readout: Float[Tensor, "H M"] | None = None,
        query_map: Complex[Tensor, "H K M"] | None = None,
    ) -> None:
        super().__init__(key, values)
        self._features = features
        self._modes = {"log_lambda": log_lambda, "b": b}
        self._mixing = mixing
        self._readout = readout
        self._query_map = query_map

    @property
    def features(self) -> Tensor:
        """The normalised key stream, [B, T, H, K]."""
        return self._features

    def lift(self, q: Tensor | None) -> Tensor:
        """c0, or c0 + W q where a query has a map to the address side; complex [B, T, H, M]."""
        if self._readout is None:
            return super().lift(q)
        # Constant or not, c goes the same way, so that W = 0 reads as no W does, to the bit.
        c = self._readout.to(self._mixing.dtype).expand(*self.key.shape[:2], -1, -1)
        if self._query_map is None:
            return c
        return c + torch.einsum("bthk,hkm->bthm", super().lift(q).to(c.dtype), self._query_map)

    def recall_stream(self, written: Written, c: Tensor) -> Tensor:
        """o_t = Re(c_t' C X_t), [B, T, H, Vs]."""
        c = torch.einsum("bthm,hmn->bthn", c.to(self._mixing.dtype), self._mixing)
        return self.run(modal_recall, c, written.stream, slot=written.slot, **self._modes)

    def project_stream(self, written: Written, y: Tensor) -> Tensor:
        """w_t = C X_t y_t, complex [B, T, H, M]."""
        w = self.run(modal_project, y, written.stream, slot=written.slot, **self._modes)
        return torch.einsum("bthn,hmn->bthm", w, self._mixing)

    def reread(self, y: Tensor, features: Written) -> Tensor:
        """project, then recall, in one pass through the modes: o = Re(y' Xk' G Xv)."""
        if features.slot != "features":
            return super().reread(y, features)
        gram = self._mixing.transpose(1, 2) @ self._mixing
        return self.run(
            modal_interdomain,
            y,
            features.stream,
            self.write(self.values).stream,
            slot=("features", "values"),
            gram=gram,
            **self._modes,
        )

    def diagnose(self) -> Mapping[str, Tensor]:
        """The decay |Lambda| of each mode, [H, M]."""
        return {"decay": self._modes["log_lambda"].real.exp()}
