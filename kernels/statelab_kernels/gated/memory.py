"""The gated memory over one segment of chunks: written once, then read or differentiated.

Tensors are [Z, C, ...], Z = chunks times heads, in the format of the state. README.md derives the
formulas. Capital letters are its matrices: A the scores of rows with keys, U what is really written.
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

    def recall(self, q: Tensor) -> Tensor:
        """Read o_i = S_i' q_i."""
        rows = self.decay.rows(q)
        read = rows.edge @ self.before
        return read.baddbmm_(self.decay.scores(rows, self.keys), self.values)

    def project(self, y: Tensor) -> Tensor:
        """Read w_i = S_i y_i."""
        return self.decay.mix_keys(y @ self.before.mT, y @ self.values.mT, self.keys)

    def gradients(self, x: Tensor, y: Tensor, state_gradient: Tensor) -> Gradients:
        """Differentiate sum_i x_i' S_i y_i, which both reads have in common.

        Recall has y = the gradient of o, project has x = the gradient of w.

        Args:
            x: [Z, C, K] address side.
            y: [Z, C, V] value side.
            state_gradient: [N, H, K, V] of the sorted states, carried back in place.
        """
        decay, keys, before, values = self.decay, self.keys, self.before, self.values
        rows = decay.rows(x)
        d_values = decay.scores(rows, keys).mT @ y
        d_before = rows.edge.mT @ y
        if self.erase is not None:
            d_before.baddbmm_(self.erase.response.mT, d_values, alpha=-1)
        waves = reversed(list(self.segment.by_wave()))
        d_after = _scan(
            waves, self.transition.mT if self.erase else self.transition, d_before, state_gradient
        )
        d_values.baddbmm_(keys.edge, d_after)

        P = y @ values.mT
        d_x = decay.mix_keys(y @ before.mT, P, keys)
        mixes = [(P, rows)]
        d_stream, d_erase = d_values, None
        if self.erase is not None:
            d_stream = self.erase.inverse.mT @ d_values
            P = (d_stream @ values.mT).tril_(-1).neg_()
            d_erase = decay.mix_keys((d_stream @ before.mT).neg_(), P, keys)
            mixes.append((P, self.erase.rows))
        d_add = decay.mix_rows(values @ d_after.mT, mixes)

        d_g = None
        if self.has_decay:
            per_token = x * d_x - keys.plain * d_add
            if self.erase is not None and d_erase is not None:
                per_token.addcmul_(self.erase.rows.plain, d_erase)
            after = torch.baddbmm(decay.whole.mT * before, keys.edge.mT, values)
            d_g = decay.gradient(per_token, (after * d_after).sum(-1)[:, None])
        return Gradients(d_x, d_erase, d_add, d_stream, d_g)


def _scan(
    waves: Iterable[tuple[slice, slice]], transition: Tensor, increment: Tensor, state: Tensor
) -> Tensor:
    """Carry states over chunks, S <- transition S + increment, and return each chunk's first S."""
    num_heads = state.shape[1]
    entering = torch.empty_like(increment)
    advance = torch.baddbmm if transition.shape[-1] > 1 else torch.addcmul
    for rows, chunks in waves:
        span = slice(chunks.start * num_heads, chunks.stop * num_heads)
        now = state[rows].flatten(0, 1)
        entering[span] = now
        advance(increment[span], transition[span], entering[span], out=now)
    return entering


def _unit_lower_inverse(A: Tensor) -> Tensor:
    """The inverse of I + the strict lower triangle of A."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
    return torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)
