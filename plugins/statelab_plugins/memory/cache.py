"""The cache family: all keys and values that a query may still attend to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from statelab.errors import RuleError
from statelab.model.memory import Memory, Written

__all__ = ["CacheMemory", "cached_attention"]


class CacheMemory(Memory):
    """Keys and values of the tokens so far, to attend to.

    Args:
        k: Keys, [B, T, H, K].
        v: Values, [B, T, H, V].
    """

    def attend(
        self, q: Float[Tensor, "B T H K"], window: int | None = None
    ) -> Float[Tensor, "B T H V"]:
        """Softmax attention over the last `window` tokens, this one counted; None is all."""
        return self.run(cached_attention, q, self.key, self.values, slot="cache", window=window)

    def recall_stream(self, written: Written, c: Tensor) -> Tensor:
        """Refused: softmax attention is not linear in what is stored."""
        raise RuleError(_NOT_LINEAR)

    def project_stream(self, written: Written, y: Tensor) -> Tensor:
        """Refused, as `recall_stream` is."""
        raise RuleError(_NOT_LINEAR)


def cached_attention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    window: int | None = None,
    initial_state: dict[str, Tensor] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B T H V"], dict[str, Tensor]]:
    """Causal softmax attention over cached and new tokens: o_i = sum_j softmax_j(q_i . k_j) v_j.

    Sequences may have seen different numbers of tokens. All stand right-aligned: the last row is
    the last token, so that a row's place in its sequence follows from the count.

    Args:
        q: Queries, already scaled; this function applies no 1/sqrt(K).
        k: Keys.
        v: Values.
        window: Tokens that a query sees, its own counted, >= 1; None is all.
        initial_state: {"keys" [N, S, H, K], "values" [N, S, H, V], "position" [N] tokens seen}.
        cu_seqlens: Boundaries of N packed documents, [N + 1]; B is 1. They are padded to a batch.
        backend: Torch's scaled_dot_product_attention is the only form, whatever this says.

    Returns:
        Outputs, and the state: the rows that a later query may still see, in the inputs' dtype;
        rows before a sequence's first token are zero.
    """
    if initial_state is None:
        n = len(q) if cu_seqlens is None else len(cu_seqlens) - 1
        initial_state = {
            "keys": k.new_zeros(n, 0, *k.shape[2:]),
            "values": v.new_zeros(n, 0, *v.shape[2:]),
            "position": torch.zeros(n, dtype=torch.int64, device=k.device),
        }
    start = initial_state["position"]
    old = initial_state["keys"].to(k.dtype), initial_state["values"].to(v.dtype)
    if cu_seqlens is None:
        total = start + q.shape[1]
        k, v = (torch.cat(pair, 1) for pair in zip(old, (k, v), strict=True))
    else:
        total = start + cu_seqlens.diff().to(start)
        lengths = cu_seqlens.diff().tolist()
        # Of an empty cache nobody has seen anything: no need to wait for a device to say so.
        seen = start.tolist() if old[0].shape[1] else [0] * len(lengths)
        q = _align(torch.split(q[0], lengths))
        k, v = (
            _join(rows, seen, torch.split(x[0], lengths))
            for rows, x in zip(old, (k, v), strict=True)
        )

    steps, rows = q.shape[1], k.shape[1]
    causal = rows == steps and cu_seqlens is None and (window is None or window >= steps)
    o = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if causal else _mask(total, steps, rows, window),
        is_causal=causal,
        scale=1.0,
    ).transpose(1, 2)
    if cu_seqlens is not None:
        o = torch.cat([row[steps - n :] for row, n in zip(o, lengths, strict=True)])[None]
    first = 0 if window is None else max(0, rows - window + 1)
    return o, {"keys": k[:, first:], "values": v[:, first:], "position": total}


_NOT_LINEAR = "a cache of keys and values has no recall and no project; read it with softmax."


def _align(documents: Sequence[Tensor]) -> Tensor:
    """[N, most tokens, ...], each document at the right end."""
    return pad_sequence(list(documents), batch_first=True, padding_side="left")


def _join(rows: Tensor, start: Sequence[int], documents: Sequence[Tensor]) -> Tensor:
    """Each sequence's cached rows [N, S, ...] before its new ones."""
    size = rows.shape[1]
    return _align(
        [
            torch.cat([cached[size - min(seen, size) :], new])
            for cached, seen, new in zip(rows, start, documents, strict=True)
        ]
    )


def _mask(total: Tensor, steps: int, rows: int, window: int | None) -> Tensor:
    """What the last `steps` rows see of all rows, [N, 1, steps, rows].

    A row that a window has pushed out of a cache lies outside every window that is still open.
    """
    place = total[:, None] - rows + torch.arange(rows, device=total.device)
    key, query = place[:, None, None, :], place[:, None, rows - steps :, None]
    # Padding, whose place is below 0, is seen by padding only: a query that sees nothing gives NaN.
    seen = (key <= query) & ((key >= 0) | (query < 0))
    return seen if window is None else seen & (key > query - window)
