"""Decay between the tokens of a chunk, only ever as products of factors <= 1.

For rows x_i and keys r_j of one chunk, with D_ij the product of exp(g_l) over j < l <= i:

    scores      A_ij = sum_c x_ic D_ijc r_jc  for j <= i, else 0
    mix_keys    sum_j P_ij D_ijc r_jc, the gradient of sum(P * A) towards x_ic
    mix_rows    sum_i P_ij D_ijc x_ic, the gradient of sum(P * A) towards r_jc

The README derives the halving tree. Z is a flat batch of chunks and heads, C a power of two.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Decayed:
    """Rows or keys [Z, C, K] with the decay that each part of a chunk needs.

    Attributes:
        plain: As they were given.
        levels: One factor of the blocks of each tree level, small blocks first; empty if no tree.
        edge: Rows decayed since the start of the chunk, or keys decayed until its end.
    """

    plain: Tensor
    levels: Sequence[Tensor]
    edge: Tensor


class Decay(ABC):
    """The decay of one stream of chunks.

    Attributes:
        step: [Z, C, K] or [Z, C, 1] exp(g).
        whole: [Z, 1, K] or [Z, 1, 1] the decay over the whole chunk.
    """

    step: Tensor
    whole: Tensor

    @abstractmethod
    def rows(self, x: Tensor) -> Decayed:
        """Prepare rows, such as queries; a row meets the decay of its own token."""

    @abstractmethod
    def keys(self, r: Tensor) -> Decayed:
        """Prepare write keys; a key meets the decay of the tokens after its own."""

    @abstractmethod
    def scores(self, rows: Decayed, keys: Decayed) -> Tensor:
        """The lower triangular A [Z, C, C]."""

    @abstractmethod
    def mix_keys(self, edge: Tensor, P: Tensor, keys: Decayed) -> Tensor:
        """Keys weighted by the lower triangle of P, plus `edge` decayed since the chunk's start."""

    @abstractmethod
    def mix_rows(self, edge: Tensor, mixes: Sequence[tuple[Tensor, Decayed]]) -> Tensor:
        """Rows weighted by each P, summed, plus `edge` decayed until the chunk's end."""

    def gradient(self, per_token: Tensor, end: Tensor) -> Tensor:
        """The gradient of g, shaped like `step`.

        Args:
            per_token: [Z, C, K] rows times their gradients, minus keys times theirs.
            end: [Z, 1, K] the state after the chunk times its gradient, summed over values.
        """
        if self.step.shape[-1] == 1:
            per_token, end = per_token.sum(-1, keepdim=True), end.sum(-1, keepdim=True)
        later = torch.ones(per_token.shape[1], per_token.shape[1]).to(per_token).triu()
        # Rounding would leave a trace at a reset, where the gradient is exactly zero.
        return (later @ per_token + end).masked_fill_(self.step == 0, 0)


class ChannelDecay(Decay):
    """A decay per key channel, by the halving tree."""

    def __init__(self, g: Tensor) -> None:
        """Take g [Z, C, K]."""
        self.step = g.exp()
        # The decay over each half block: [Z, C / h, K] for h = 1, 2, 4, ..., C / 2.
        self._totals: list[Tensor] = []
        total = self.step
        while total.shape[1] > 1:
            self._totals.append(total)
            total = total[:, 0::2] * total[:, 1::2]
        self.whole = total

    def rows(self, x: Tensor) -> Decayed:  # noqa: D102
        edge, levels = x * self.step, []
        for level, total in enumerate(self._totals):
            second = _halves(edge, 1 << level)[:, 1]
            levels.append(second.clone())
            second *= _halves(total, 1)[:, 0]
        return Decayed(x, levels, edge)

    def keys(self, r: Tensor) -> Decayed:  # noqa: D102
        edge, levels = r.clone(), []
        for level, total in enumerate(self._totals):
            first = _halves(edge, 1 << level)[:, 0]
            levels.append(first.clone())
            first *= _halves(total, 1)[:, 1]
        return Decayed(r, levels, edge)

    def scores(self, rows: Decayed, keys: Decayed) -> Tensor:  # noqa: D102
        A = torch.diag_embed((rows.plain * keys.plain).sum(-1))
        for row, key in zip(rows.levels, keys.levels, strict=True):
            blocks = _blocks(A, row.shape[1])
            blocks.copy_((row @ key.mT).view(blocks.shape))
        return A

    def mix_keys(self, edge: Tensor, P: Tensor, keys: Decayed) -> Tensor:  # noqa: D102
        out = edge.clone()
        for total, key in zip(reversed(self._totals), reversed(keys.levels), strict=True):
            half = key.shape[1]
            second = _halves(out, half)[:, 1]
            second *= _halves(total, 1)[:, 0]
            second += _blocks(P, half).reshape(-1, half, half) @ key
        out *= self.step
        return out.addcmul_(P.diagonal(dim1=1, dim2=2)[..., None], keys.plain)

    def mix_rows(self, edge: Tensor, mixes: Sequence[tuple[Tensor, Decayed]]) -> Tensor:  # noqa: D102
        out = edge.clone()
        for level in reversed(range(len(self._totals))):
            half = 1 << level
            first = _halves(out, half)[:, 0]
            first *= _halves(self._totals[level], 1)[:, 1]
            for P, rows in mixes:
                first += _blocks(P, half).reshape(-1, half, half).mT @ rows.levels[level]
        for P, rows in mixes:
            out.addcmul_(P.diagonal(dim1=1, dim2=2)[..., None], rows.plain)
        return out


class ScalarDecay(Decay):
    """One decay for all channels: D is a matrix, the tree's scores of ones."""

    def __init__(self, g: Tensor) -> None:
        """Take g [Z, C, 1], or [1, C, 1] for all."""
        tree = ChannelDecay(g)
        ones = torch.ones_like(g)
        since_start, until_end = tree.rows(ones), tree.keys(ones)
        self.step, self.whole = tree.step, tree.whole
        self._since_start, self._until_end = since_start.edge, until_end.edge
        self._between = tree.scores(since_start, until_end)

    def rows(self, x: Tensor) -> Decayed:  # noqa: D102
        return Decayed(x, (), x * self._since_start)

    def keys(self, r: Tensor) -> Decayed:  # noqa: D102
        return Decayed(r, (), r * self._until_end)

    def scores(self, rows: Decayed, keys: Decayed) -> Tensor:  # noqa: D102
        return (rows.plain @ keys.plain.mT).mul_(self._between)

    def mix_keys(self, edge: Tensor, P: Tensor, keys: Decayed) -> Tensor:  # noqa: D102
        return torch.baddbmm(edge * self._since_start, P * self._between, keys.plain)

    def mix_rows(self, edge: Tensor, mixes: Sequence[tuple[Tensor, Decayed]]) -> Tensor:  # noqa: D102
        out = edge * self._until_end
        for P, rows in mixes:
            out.baddbmm_((P * self._between).mT, rows.plain)
        return out


def _halves(x: Tensor, half: int) -> Tensor:
    """View [Z, C, K] as [Z * blocks, 2, half, K]."""
    return x.view(-1, 2, half, x.shape[-1])


def _blocks(A: Tensor, half: int) -> Tensor:
    """View the blocks [Z, blocks, half, half] of A where second halves meet first halves."""
    Z, C, _ = A.shape
    diagonal = A.view(Z, -1, 2 * half, C // (2 * half), 2 * half).diagonal(dim1=1, dim2=3)
    return diagonal[:, half:, :half].permute(0, 3, 1, 2)
