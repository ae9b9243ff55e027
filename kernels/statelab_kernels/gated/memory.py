"""The gated memory over one segment of chunks: written once, then read or differentiated.

Tensors are [Z, C, ...], Z = chunks times heads, in the format of the state. README.md derives the
formulas.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from statelab_kernels.chunks import Segment
from statelab_kernels.gated.decay import ChannelDecay, Decay, Decayed, ScalarDecay


@dataclass(frozen=True, slots=True)
class Erase:
    """How the delta rule reads the memory before it writes.

    Attributes:
        rows: The erase vectors.
        inverse: [Z, C, C] of I + the strict scores of these rows with the keys.
        response: [Z, C, K] W, how U answers to the state that enters the chunk.
    """

    rows: Decayed
    inverse: Tensor
    response: Tensor


@dataclass(frozen=True, slots=True)
class Query:
    """An address-side stream [Z, C, K] that reads a memory.

    Attributes:
        rows: The stream.
        scores: [Z, C, C] with the memory's keys.
    """

    rows: Decayed
    scores: Tensor


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of a read, [Z, C, ...]; `erase` and `g` are None where there is none."""

    x: Tensor
    erase: Tensor | None
    add: Tensor
    stream: Tensor
    g: Tensor | None


class Memory:
    """A segment's memory, S_i = D_i S_{i-1} + r_i u_i' with u_i = s_i - S_{i-1}' D_i a_i."""

    def __init__(
        self,
        segment: Segment,
        erase: Tensor | None,
        add: Tensor,
        stream: Tensor,
        g: Tensor | None,
        state: Tensor,
    ) -> None:
        """Write the stream.

        Args:
            segment: The chunks that Z counts.
            erase: [Z, C, K] erase vectors, that act on the decayed state; None erases nothing.
            add: [Z, C, K] r, the write keys, which are also the direction of the erasure.
            stream: [Z, C, V] s.
            g: [Z, C, K] or [Z, C, 1] log decays, or None.
            state: [N, H, K, V] sorted states, carried over the segment in place.
        """
        self.segment = segment
        self.has_decay = g is not None
        self.decay: Decay
        if g is None:
            self.decay = ScalarDecay(add.new_zeros(1, add.shape[1], 1))
        else:
            self.decay = ScalarDecay(g) if g.shape[-1] == 1 else ChannelDecay(g)
        self.keys = self.decay.keys(add)
        # [Z, K, K], or its diagonal as [Z, K, 1], or a multiple of I as [Z, 1, 1].
        transition = self.decay.whole.mT.expand(len(add), -1, -1)
        self.erase = None
        if erase is not None:
            rows = self.decay.rows(erase)
            inverse = _unit_lower_inverse(self.decay.scores(rows, self.keys))
            self.erase = Erase(rows, inverse, inverse @ rows.edge)
            stream = inverse @ stream
            kept = torch.diag_embed(transition.expand(-1, add.shape[-1], 1).squeeze(-1))
            transition = torch.baddbmm(kept, self.keys.edge.mT, self.erase.response, alpha=-1)
        self.transition = transition
        increment = self.keys.edge.mT @ stream
        self.before = _scan(segment.by_wave(), transition, increment, state)
        if self.erase is not None:
            stream = torch.baddbmm(stream, self.erase.response, self.before, alpha=-1)
        self.values = stream

    def query(self, x: Tensor) -> Query:
        """Prepare x [Z, C, K] for `recall` or `gradients`."""
        rows = self.decay.rows(x)
        return Query(rows, self.decay.scores(rows, self.keys))

    def recall(self, query: Query) -> Tensor:
        """Read S_i' x_i."""
        return torch.baddbmm(query.rows.edge @ self.before, query.scores, self.values)

    def project(self, y: Tensor) -> Tensor:
        """Read S_i y_i, for y [Z, C, V]."""
        return self.decay.mix_keys(y @ self.before.mT, y @ self.values.mT, self.keys)

    def gradients(self, query: Query, y: Tensor, d_state: Tensor) -> Gradients:
        """Differentiate sum_i x_i' S_i y_i, the form that both reads are one half of.

        For recall, x is its query and y the gradient of its output; for project it's the reverse.

        Args:
            query: x.
            y: [Z, C, V].
            d_state: [N, H, K, V] gradient of the sorted states, carried back in place.
        """
        decay, keys, erase = self.decay, self.keys, self.erase
        d_values = query.scores.mT @ y
        d_before = query.rows.edge.mT @ y
        transition = self.transition
        if erase is not None:
            d_before.baddbmm_(erase.response.mT, d_values, alpha=-1)
            transition = transition.mT
        waves = reversed(list(self.segment.by_wave()))
        d_after = _scan(waves, transition, d_before, d_state)
        d_values.baddbmm_(keys.edge, d_after)

        P = y @ self.values.mT
        d_x = decay.mix_keys(y @ self.before.mT, P, keys)
        mixes = [(P, query.rows)]
        per_token = query.rows.plain * d_x
        d_stream, d_erase = d_values, None
        if erase is not None:
            d_stream = erase.inverse.mT @ d_values
            P = (d_stream @ self.values.mT).tril_(-1).neg_()
            d_erase = decay.mix_keys((d_stream @ self.before.mT).neg_(), P, keys)
            mixes.append((P, erase.rows))
            per_token.addcmul_(erase.rows.plain, d_erase)
        d_add = decay.mix_rows(self.values @ d_after.mT, mixes)

        d_g = None
        if self.has_decay:
            per_token.addcmul_(keys.plain, d_add, value=-1)
            after = torch.baddbmm(decay.whole.mT * self.before, keys.edge.mT, self.values)
            d_g = decay.gradient(per_token, (after * d_after).sum(-1)[:, None])
        return Gradients(d_x, d_erase, d_add, d_stream, d_g)


def _scan(
    waves: Iterable[tuple[slice, slice]], transition: Tensor, increment: Tensor, state: Tensor
) -> Tensor:
    """Carry states over chunks, S <- transition S + increment, and return each chunk's first S."""
    num_heads = state.shape[1]
    entering = torch.empty_like(increment)
    for rows, chunks in waves:
        span = slice(chunks.start * num_heads, chunks.stop * num_heads)
        now = state[rows].flatten(0, 1)  # a view [rows * H, K, V]
        entering[span] = now
        if transition.shape[-1] == 1:
            torch.addcmul(increment[span], transition[span], entering[span], out=now)
        else:
            torch.baddbmm(increment[span], transition[span], entering[span], out=now)
    return entering


def _unit_lower_inverse(A: Tensor) -> Tensor:
    """The inverse of I + the strict lower triangle of A."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
    inverse: Tensor = torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)
    return inverse
